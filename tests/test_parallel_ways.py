"""Parts of ``tests/parallel`` on other ways than the usual one: uneven cuts, over MPI, on two hosts, in the data plane.

``test_parallel.py`` runs all of it on ranks of one machine, which share their memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_parallel import DEADLINE_S, ENV, PYTEST, check, some

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 60)]

BUCKETS = ("buckets_life", "buckets_place", "buckets_ranks")
SHARDED = ("sharded_life", "sharded_ranks", "sharded_state", "zero_ranks")
OPTIMIZERS = {*BUCKETS, *SHARDED}
SCALED = {"scaling", *OPTIMIZERS}
OPTIMIZER = ("optimizer", "optimizer_classes", "optimizer_life", "optimizer_sparse")
# Ranks, settings, what runs always, and what runs in all.
WAYS: dict[str, tuple[int, dict[str, str], set[str], set[str]]] = {
    "3 ranks": (3, {}, set(), {"memory_ranks", *SCALED}),
    "2 ranks over MPI": (2, {"WORKBENCH_BACKEND": "mpi"}, {"buckets_ranks", "scaling", "sharded_ranks"}, SCALED),
    "3 ranks over MPI": (3, {"WORKBENCH_BACKEND": "mpi"}, set(), OPTIMIZERS),
    "2 + 2 ranks": (4, {"MPIR_CVAR_NUM_CLIQUES": "2"}, {"world", "buckets_ranks", "sharded_state"}, {"world", *SCALED}),
    "nothing is eager": (2, {"WORKBENCH_EAGER_BYTES": "0"}, set(), {"allreduce", "verbs", "order", *OPTIMIZER}),
    "nothing is eager among 4 ranks": (4, {"WORKBENCH_EAGER_BYTES": "0"}, set(), {"verbs", "order", "process_sets"}),
}


def run(jobs: Runner, way: str, names: set[str]) -> None:
    """Every one of these tests passes on each rank."""
    n, settings, _, _ = WAYS[way]
    words = (*PYTEST, *some(sorted(names)), "-m", "not slow")
    check(jobs.mpiexec(n, *words, deadline_s=DEADLINE_S, **settings, **ENV), n)


@pytest.mark.parametrize("way", [way for way, (_, _, always, _) in WAYS.items() if always])
def test_mpiexec(jobs: Runner, way: str) -> None:
    """What such a way does differently."""
    run(jobs, way, WAYS[way][2])


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_the_rest(jobs: Runner, way: str) -> None:
    """Whatever else could tell that it is another way."""
    run(jobs, way, WAYS[way][3] - WAYS[way][2])
