"""A learner's function on real ranks: the same results as in the simulator, and no wait without an end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from judged import ALWAYS
from thorough import once_more

from workbench import cluster
from workbench.course import exercise
from workbench.course.judging.real_ranks import ClusterRanks
from workbench.course.judging.task import CommTask
from workbench.course.simulator import simulate
from workbench.course.tasks import names, task
from workbench.errors import DeadlineError

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.parallel, pytest.mark.course, pytest.mark.slow]

EVERYWHERE = """
import numpy as np
from workbench.course.tasks import task

def every(comm):
    x = np.arange(1001.0) * (comm.rank + 1)
    y = np.empty(3)
    comm.Sendrecv(np.full(3, float(comm.rank)), (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size)
    later = comm.isend({"from": comm.rank}, dest=(comm.rank + 1) % comm.size, tag=3)
    got = comm.recv(source=(comm.rank - 1) % comm.size, tag=3)
    later.wait()
    large = comm.bcast(np.ones(300_000) if comm.rank == 0 else None)
    total = np.empty(3)
    comm.Allreduce(np.ones(3), total)
    comm.barrier()
    return [
        task("03.ring_allreduce").reference(comm, x).sum(), y.sum(), got, large.sum(), total.tolist(),
        comm.alltoall([comm.rank * 10 + i for i in range(comm.size)]),
    ]
"""
OVER_MPI = """
from mpi4py import MPI
from workbench.course.judging.real_ranks import PolledComm
print(every(PolledComm(MPI.COMM_WORLD)) == every(MPI.COMM_WORLD))
print("RESULT", MPI.COMM_WORLD.rank, every(PolledComm(MPI.COMM_WORLD)))
"""


def expected(n: int) -> list[Any]:
    """What the simulator gives."""
    space: dict[str, Any] = {}
    exec(EVERYWHERE, space)
    return simulate(n, space["every"]).results


def found(outputs: str) -> list[Any]:
    """The results that the ranks printed, by rank."""
    lines = [line.split(" ", 2)[1:] for line in outputs.splitlines() if line.startswith("RESULT")]
    space = {"np": np}
    return [eval(text, space) for _, text in sorted(lines)]


@pytest.mark.parametrize("n", [once_more(2), 4])
def test_mpi4py_gives_what_the_simulator_gives(jobs: Runner, tmp_path: Path, n: int) -> None:
    """Every kind of message, and the ring exercise's solution: simulator, polled MPI and plain mpi4py agree."""
    script = tmp_path / "over_mpi.py"
    script.write_text(EVERYWHERE + OVER_MPI)
    done = jobs.mpiexec(n, str(script), deadline_s=60)
    assert done.code == 0, done.report()
    told = "".join(done.out(rank) for rank in range(n))
    assert told.count("True\n") == n, told
    assert found(told) == expected(n)


@pytest.fixture(scope="module")
def engines() -> Iterator[cluster.Cluster]:
    """Four real engines."""
    running = cluster.up(n=4, quiet=True)
    yield running
    running.down()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("every", [False, once_more(True)])
def test_every_solution_passes_on_four_engines(
    every: bool,
    engines: cluster.Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """check() runs an exercise for ranks on the engines that are up, and says so.

    In a run that is not thorough some of every kind.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())
    for name in names():
        one = task(name)
        if isinstance(one, CommTask) and one.real and (every or name in ALWAYS):
            exercise.exercise(name)(one.reference)
            exercise.check(name)
            told = capsys.readouterr().out
            assert "✓ real ranks: the same result on 4 MPI ranks" in told or "no case for 4 ranks" in told, told


def test_a_function_that_hangs_on_engines_ends_and_the_next_one_runs(engines: cluster.Cluster) -> None:
    """A receive that nobody sends to ends at its deadline, with rank and line; the engines answer again."""

    def hangs(comm: Any) -> Any:
        return comm.recv(source=(comm.rank + 1) % comm.size)

    def rings(comm: Any) -> Any:
        return comm.sendrecv(comm.rank, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)

    ranks = ClusterRanks(engines)
    with pytest.raises(DeadlineError, match=r"waited in recv\(source=1\) for 1 s"):
        ranks.run(hangs, [()] * 4, deadline_s=1.0)
    assert ranks.run(rings, [()] * 4) == [3, 0, 1, 2]


def test_a_function_that_fails_on_engines_is_told(engines: cluster.Cluster) -> None:
    """What one rank raises comes back in words, soon, though the others wait for it."""

    def fails(comm: Any) -> Any:
        if comm.rank == 0:
            raise KeyError("mine")
        return comm.recv(source=0)

    with pytest.raises(Exception, match=r"KeyError|waited in recv"):
        ClusterRanks(engines).run(fails, [()] * 4, deadline_s=1.0)
