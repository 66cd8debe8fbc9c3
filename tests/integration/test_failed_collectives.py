"""After a collective has failed, its arrays are the caller's alone, however slow another rank is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from thorough import once_more

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

SCRIPT = str(Path(__file__).resolve().parent / "scripts" / "fails_while_another_is_slow.py")


@pytest.mark.parametrize(
    ("way", "where"), [("shm", "common"), once_more("shm", "own"), once_more("mpi", "own"), once_more("sockets", "own")]
)
def test_nobody_writes_into_an_array_whose_collective_failed(jobs: Runner, way: str, where: str) -> None:
    """Rank 0 got its error and refilled its tensor, and every element stays; the slow rank gets an error as well.

    Over TCP it may have the right sum: all that rank 0 had sent before its deadline lay in the system's buffers.
    """
    env = {"WORKBENCH_DATA_TIMEOUT_S": "1", "WORKBENCH_BACKEND": way}
    job = jobs.mpiexec(2, SCRIPT, where, deadline_s=50.0, **env)
    assert "Error:" in job.out(0), job.report()
    assert "changed 0\n" in job.out(0), job.report()
    assert "Error:" in job.out(1) or (way == "sockets" and "no error, 2.0\n" in job.out(1)), job.report()
    assert not job.left, job.report()
