"""Functions on ranks in executors: fixed and elastic jobs, with executors that die and come."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from executors import counting, end, executors, start, with_variable
from running import eventually

from workbench.errors import LaunchError, PeerLostError, RankFailedError
from workbench.executors.jobs import run_on
from workbench.executors.registry import ExecutorRegistry
from workbench.launch.elastic.run import Limits

MARK = "WORKBENCH_TEST_OF_EXECUTORS"


@pytest.fixture
def board() -> Iterator[ExecutorRegistry]:
    """One, on loopback."""
    with ExecutorRegistry("127.0.0.1") as found:
        yield found


def total(k: float) -> tuple[int, int, int, float]:
    """Who this is, and a sum over all."""
    import numpy as np

    import workbench as hvd

    hvd.init()
    mine = np.full(3, hvd.rank() + k)
    return hvd.rank(), hvd.local_rank(), hvd.size(), float(hvd.allreduce(mine, op=hvd.Sum)[0])


def test_a_function_runs_on_each_executor(board: ExecutorRegistry) -> None:
    """Its results come by rank."""
    with executors(board, 2):
        assert run_on(board, 2, total, (10.0,)) == [(0, 0, 2, 21.0), (1, 1, 2, 21.0)]


def test_fewer_executors_than_ranks_is_an_error(board: ExecutorRegistry) -> None:
    """It names the hosts."""
    with executors(board, 1), pytest.raises(LaunchError, match="2 ranks do not fit the 1 slots of"):
        run_on(board, 2, total, (1.0,))


def test_mpi_is_refused(board: ExecutorRegistry) -> None:
    """Mpiexec starts no process in an executor."""
    with executors(board, 1), pytest.raises(LaunchError, match="MPI and Gloo exclude each other"):
        run_on(board, 1, total, (1.0,), env={"WORKBENCH_BACKEND": "mpi"})


def test_an_exception_comes_with_its_rank(board: ExecutorRegistry) -> None:
    """And is the cause."""

    def fail() -> None:
        import workbench as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("a wrong value")
        hvd.barrier()

    with executors(board, 2), pytest.raises(RankFailedError, match="Rank 1 raised ValueError: a wrong value") as found:
        run_on(board, 2, fail)
    assert isinstance(found.value.__cause__, ValueError)


def test_ranks_see_the_gpus_of_all_executors_of_their_host(board: ExecutorRegistry) -> None:
    """In the order of the executors, so a local rank is a GPU's number."""

    def visible() -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    guests = [start(board.invitation, f"task {i}", gpus=[str(3 - i)]) for i in range(2)]
    board.wait_for(2, timeout_s=30.0)
    expected = ",".join(each.gpus[0] for each in board.executors())
    found = run_on(board, 2, visible)
    board.close()
    assert [end(each) for each in guests] == [0, 0]
    assert found == [expected] * 2
    assert sorted(expected.split(",")) == ["2", "3"]


def test_when_the_agents_executor_dies_the_job_ends_with_its_host(board: ExecutorRegistry, tmp_path: Path) -> None:
    """No rank is left behind."""

    def wait() -> None:
        import workbench as hvd

        hvd.init()
        (tmp_path / str(hvd.rank())).touch()
        time.sleep(600)

    with executors(board, 2) as processes:
        first = board.executors()[0].label

        def kill() -> None:
            assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
            processes[int(first.split()[-1])].kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(PeerLostError, match="was lost with ranks 0, 1, which ends the job: its executor is lost"):
            run_on(board, 2, wait, env={MARK: str(tmp_path)})
        killer.join()
        assert board.lost() == [f"{first}@{board.hosts()[0][0]}"]
        assert eventually(lambda: with_variable(MARK, str(tmp_path)) == [])


# --- elastic ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_elastic_job_takes_in_an_executor_that_comes(board: ExecutorRegistry, tmp_path: Path) -> None:
    """At a commit; nothing is counted twice."""
    with executors(board, 1):
        late: list[Any] = []

        def come() -> None:
            assert eventually(lambda: bool(list(tmp_path.glob("step.5.*"))))
            late.append(start(board.invitation, "task 9"))
            board.wait_for(2, timeout_s=30.0)
            (tmp_path / "go").touch()

        comer = threading.Thread(target=come)
        comer.start()
        found = run_on(board, Limits(least=1), counting, (str(tmp_path), 150))
        comer.join()
    assert found == [(0, 2, 150.0), (1, 2, 150.0)]
    assert end(late[0]) == 0


@pytest.mark.slow
def test_an_elastic_job_goes_on_when_a_rank_is_killed(board: ExecutorRegistry, tmp_path: Path) -> None:
    """Its slot is filled again."""
    with executors(board, 2):

        def kill() -> None:
            assert eventually(lambda: bool(list(tmp_path.glob("step.5.*"))))
            victims = [
                pid for pid in with_variable(MARK, str(tmp_path)) if b"workbench.launch.function" in cmdline(pid)
            ]
            os.kill(max(victims), signal.SIGKILL)
            (tmp_path / "go").touch()

        killer = threading.Thread(target=kill)
        killer.start()
        env = {MARK: str(tmp_path)}
        found = run_on(board, Limits(least=1), counting, (str(tmp_path), 150), env=env)
        killer.join()
    assert sorted(size for _, size, _ in found) == [2, 2]
    assert {total for *_, total in found} == {150.0}


@pytest.mark.slow
def test_an_elastic_job_ends_with_its_last_host(board: ExecutorRegistry, tmp_path: Path) -> None:
    """The executor with the agent dies, and with it all ranks: that is said, and nothing begins anew."""
    with executors(board, 2) as processes:

        def kill() -> None:
            assert eventually(lambda: bool(list(tmp_path.glob("step.5.*"))))
            processes[int(board.executors()[0].label.split()[-1])].kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(RankFailedError, match="All ranks of epoch 1 were lost"):
            run_on(board, Limits(least=1), counting, (str(tmp_path), 150), env={MARK: str(tmp_path)})
        killer.join()
        assert eventually(lambda: with_variable(MARK, str(tmp_path)) == [])


def cmdline(pid: int) -> bytes:
    """A process's command; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_an_elastic_job_ends_when_no_executor_will_come_any_more(board: ExecutorRegistry, tmp_path: Path) -> None:
    """The engine's reason is the error, and no rank is left."""

    def failed() -> str:
        return "the engine has given up" if list(tmp_path.glob("step.5.*")) else ""

    with executors(board, 2):
        with pytest.raises(LaunchError, match="the engine has given up"):
            run_on(board, Limits(least=2), counting, (str(tmp_path), 50), env={MARK: str(tmp_path)}, failed=failed)
        assert eventually(lambda: with_variable(MARK, str(tmp_path)) == [])
