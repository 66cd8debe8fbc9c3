"""After ``rescue()`` the next cell works, however broken the job was: it is tried out, and what was done is said."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import pytest
from cells import START, collect, run, send, works

from workbench import cluster

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(180)]
N = 3

DELETE = """
import sys
if rank == 1:
    for name in [name for name in sys.modules if name.partition('.')[0] == 'workbench']:
        del sys.modules[name]
"""
AGAIN = "import workbench as hvd\nhvd.init()"


@pytest.fixture
def engines(running: cluster.Cluster) -> Iterator[cluster.Cluster]:
    """Three engines that have called init()."""
    assert run(running, START) == {}
    yield running
    running.rescue(quiet=True)
    assert run(running, "import workbench as hvd\nhvd.shutdown()") == {}


def test_one_rank_has_left_and_begins_again_alone(engines: cluster.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the others are in the job still, it cannot meet them, and says so; rescue() has all in one job."""
    pids = engines.pids()
    assert run(engines, "kept = rank\nif rank == 1:\n    hvd.shutdown()") == {}
    errors = run(engines, "hvd.init()\nhvd.allreduce(x)")
    assert errors.keys() == set(range(N))
    assert errors[1][0] == "LaunchError"
    named = re.search(r"init\(\): ranks? ([\d, ]+) (?:is|are) idle", errors[1][1])
    assert named
    assert set(named[1].split(", ")) <= {"0", "2"}  # whose cells have ended by then
    assert "shutdown()" in errors[1][1]
    assert {errors[rank][0] for rank in (0, 2)} == {"ShutDownError"}
    engines.rescue()
    said = capsys.readouterr().out
    assert "rank 1 is in no job" in said
    assert "all ranks left the job and began it again" in said
    works(engines)
    assert engines.pids() == pids
    assert engines.client[:].pull("kept", block=True) == list(range(N))
    assert run(engines, "hvd.shutdown()\nhvd.init()") == {}
    works(engines)


def test_one_rank_begins_alone(engines: cluster.Cluster) -> None:
    """In a job of some ranks it waits only for those; the rest of the cell need not come."""
    half = "from mpi4py import MPI\nhalf = MPI.COMM_WORLD.Split(rank // 2)\nhvd.shutdown()"
    assert run(engines, half) == {}
    assert run(engines, "if rank < 2:\n    time.sleep(1.5 * rank)\n    hvd.init(half)\n    size = hvd.size()") == {}
    assert engines.client[:2].pull("size", block=True) == [2, 2]


def test_workbench_was_deleted_on_one_rank(engines: cluster.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The rank has lost the job that goes on in its threads, and says so: only a new process is whole again."""
    assert run(engines, DELETE) == {}
    errors = run(engines, AGAIN + "\nhvd.allreduce(x)")
    assert errors.keys() == set(range(N))
    assert errors[1][0] == "LaunchError"
    assert "deleted from sys.modules" in errors[1][1]
    assert {errors[rank][0] for rank in (0, 2)} == {"RankFailedError"}
    engines.rescue()
    said = capsys.readouterr().out
    assert "rank 1 lost the job" in said
    assert "was workbench deleted from sys.modules?" in said
    assert f"{N} engines started anew" in said
    assert run(engines, START) == {}
    works(engines)


def test_nothing_is_begun_where_nothing_is_wrong(engines: cluster.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Engines that have left their job together, or that have never begun one, are whole; so is a half of them."""
    assert run(engines, "hvd.shutdown()") == {}
    engines.rescue()
    half = "from mpi4py import MPI\nhalf = MPI.COMM_WORLD.Split(rank // 2)\nif rank < 2:\n    hvd.init(half)"
    assert run(engines, half) == {}
    engines.rescue()
    assert capsys.readouterr().out == 2 * "nothing to rescue\n"
    assert run(engines, "if rank < 2:\n    hvd.shutdown()\nhvd.init()") == {}
    works(engines)


def test_an_interrupted_shutdown_leaves_no_job_behind(engines: cluster.Cluster) -> None:
    """One rank waits in shutdown() for the others, and is stopped: it has left, and can begin a new job with them."""
    results = send(engines, "hvd.shutdown() if rank == 0 else time.sleep(100)")
    time.sleep(0.5)
    engines.client.send_signal(signal.SIGINT, targets=list(range(N)), block=True)
    assert collect(results).keys() == set(range(N))
    engines.rescue()
    works(engines)
    count = "import threading\njobs = sum(thread.name == 'workbench-engine' for thread in threading.enumerate())"
    assert run(engines, count) == {}
    assert engines.client[0]["jobs"] == 1
