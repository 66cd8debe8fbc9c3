"""After a collective has failed, its arrays are the caller's alone, however slow another rank is."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from thorough import once_more

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

SCRIPT = str(Path(__file__).resolve().parent / "scripts" / "fails_while_another_is_slow.py")


@pytest.mark.parametrize(
    ("way", "where"), [("shm", "common"), once_more("shm", "own"), once_more("mpi", "own"), once_more("gloo", "own")]
)
def test_nobody_writes_into_an_array_whose_collective_failed(jobs: Runner, way: str, where: str) -> None:
    """Rank 0 got its error and refilled its tensor, and every element stays; the slow rank gets an error as well."""
    env = {"WORKBENCH_DATA_TIMEOUT_S": "1", "WORKBENCH_BACKEND": way}
    if way == "gloo":
        with socket.create_server(("127.0.0.1", 0)) as server:
            meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        each = [{**meet, "RANK": str(rank)} for rank in range(2)]
        job = jobs.together(2, SCRIPT, where, deadline_s=50.0, each=each, **env)
    else:
        job = jobs.mpiexec(2, SCRIPT, where, deadline_s=50.0, **env)
    assert "Error:" in job.out(0), job.report()
    assert "changed 0\n" in job.out(0), job.report()
    assert "Error:" in job.out(1), job.report()
    assert not job.left, job.report()
