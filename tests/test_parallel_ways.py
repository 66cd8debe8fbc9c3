"""Parts of ``tests/parallel`` on other ways than the usual one: uneven cuts, over MPI, on two hosts, in the data plane.

``test_parallel.py`` runs all of it on 1, 2 and 4 ranks of one machine, which share their memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_parallel import DEADLINE_S, ENV, HERE, PYTEST, check

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 60)]

OPTIMIZERS = ("buckets", "sharded")
WAYS: dict[str, tuple[int, tuple[str, ...], dict[str, str]]] = {
    "3 ranks": (3, ("memory_ranks", *OPTIMIZERS), {}),
    "2 ranks over MPI": (2, OPTIMIZERS, {"WORKBENCH_BACKEND": "mpi"}),
    "3 ranks over MPI": (3, OPTIMIZERS, {"WORKBENCH_BACKEND": "mpi"}),
    "2 + 2 ranks": (4, OPTIMIZERS, {"MPIR_CVAR_NUM_CLIQUES": "2"}),
    "no tensor rides": (
        4,
        ("allreduce", "verbs", "order", "optimizer", "process_sets"),
        {"WORKBENCH_RIDING_BYTES": "0"},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_mpiexec(jobs: Runner, way: str) -> None:
    """Every one of these tests passes on each rank."""
    n, names, settings = WAYS[way]
    files = [str(path) for name in names for path in sorted((HERE / "parallel").glob(f"test_{name}*.py"))]
    assert files
    check(jobs.mpiexec(n, *PYTEST, *files, "-m", "not slow", deadline_s=DEADLINE_S, **settings, **ENV), n)
