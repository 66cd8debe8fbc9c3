"""A job over time: begun again and again, idle, interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from running import eventually

import workbench.torch as hvd

pytestmark = pytest.mark.processes("shutdown() and init() are of the whole process; signals")

IDLE_S = 2.0
IDLE_SHARE = 0.02  # of one core; the figure to hold is 1 %, the rest is for the machine's noise


@pytest.fixture
def own_environment() -> Iterator[None]:
    """What a test changes in the environment, for an init() of its own, is as before afterwards."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    hvd.shutdown()
    hvd.init()


@pytest.mark.ranks(2)
def test_an_idle_rank_costs_nothing(rank: int, n: int, capsys: pytest.CaptureFixture[str]) -> None:
    """After init() a rank that waits for its user takes no measurable share of a core: nothing polls."""
    hvd.allreduce(torch.ones(3))
    hvd.barrier()
    before = os.times()
    time.sleep(IDLE_S)
    after = os.times()
    share = (after.user - before.user + after.system - before.system) / IDLE_S
    shares = hvd.allgather(torch.tensor([share], dtype=torch.float64)).tolist()
    with capsys.disabled():
        print("\nCPU of an idle rank, share of a core, by rank:", " ".join(f"{each:.2%}" for each in shares))
    assert max(shares) <= IDLE_SHARE


@pytest.mark.ranks(2)
def test_a_waiting_rank_costs_little(rank: int, n: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that waits for a late one sleeps as well: no core is burnt while others still compute."""
    hvd.barrier()
    if rank == n - 1:
        time.sleep(2.0)
    before = os.times()
    hvd.allreduce(torch.ones(3), name="late")
    after = os.times()
    share = 0.0 if rank == n - 1 else (after.user - before.user + after.system - before.system) / 2.0
    shares = hvd.allgather(torch.tensor([share], dtype=torch.float64)).tolist()
    with capsys.disabled():
        print("\nCPU of a waiting rank, share of a core, by rank:", " ".join(f"{each:.2%}" for each in shares))
    assert max(shares) <= 2 * IDLE_SHARE


def test_init_and_shutdown_can_be_repeated(n: int) -> None:
    """20 jobs one after the other in the same processes; a second init() or shutdown() does nothing."""
    for i in range(20):
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.init()
        hvd.init()
        assert hvd.is_initialized()
        assert hvd.allreduce(torch.full((3,), float(i)), op=hvd.Sum, name="every time").tolist() == [n * i] * 3
        assert hvd.allreduce(torch.full((3,), float(i)), op=hvd.Sum).tolist() == [n * i] * 3


def test_nothing_is_left_of_earlier_jobs() -> None:
    """Threads and open files do not grow with the number of jobs."""

    def count() -> tuple[int, int]:
        return threading.active_count(), psutil.Process().num_fds()

    hvd.shutdown()
    hvd.init()
    hvd.allreduce(torch.ones(3))
    threads, files = count()
    for _ in range(5):
        hvd.shutdown()
        hvd.init()
        hvd.allreduce(torch.ones(3))
    # A thread ends a moment after it has said so.
    assert eventually(lambda: count()[0] <= threads and count()[1] <= files), (count(), threads, files)


def test_a_second_init_for_others_is_told(rank: int, n: int, capsys: pytest.CaptureFixture[str]) -> None:
    """init(comm=…) in a job of another size changes nothing, and says so; a communicator of all ranks is right."""
    if not os.environ.get("PMI_SIZE") and not os.environ.get("OMPI_COMM_WORLD_SIZE"):
        pytest.skip("not started by MPI")
    from mpi4py import MPI

    hvd.init(comm=MPI.COMM_WORLD)
    assert capsys.readouterr().err == ""
    hvd.init(comm=MPI.COMM_SELF)
    told = f"workbench: rank {rank}: init() with a communicator of size 1 changes nothing" if n > 1 else ""
    assert capsys.readouterr().err.startswith(told)
    assert hvd.size() == n


def test_a_communicator_of_one_s_own(rank: int, n: int) -> None:
    """init(comm=…) makes a job of the communicator's ranks, in their order; afterwards all are together again."""
    if not os.environ.get("PMI_SIZE") and not os.environ.get("OMPI_COMM_WORLD_SIZE"):
        pytest.skip("started without MPI")
    from mpi4py import MPI

    hvd.shutdown()
    try:
        halves = MPI.COMM_WORLD.Split(rank % 2, -rank)
        hvd.init(comm=halves)
        assert (hvd.rank(), hvd.size()) == (halves.rank, halves.size)
        total = hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum)
        assert total.item() == sum(range(rank % 2, n, 2))
        hvd.shutdown()
        halves.Free()
    finally:
        hvd.shutdown()
        hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, n)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("who", ["first", "last"])
def test_ctrl_c_ends_a_wait(who: str, rank: int, n: int) -> None:
    """Ctrl-C while waiting for a late rank is a KeyboardInterrupt within a second; the result can be had afterwards."""
    interrupted = 0 if who == "first" else n - 1
    if rank == interrupted:
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="interrupted")
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            hvd.synchronize(handle)
        timer.join()
        assert not hvd.poll(handle)  # the others come later
        result = hvd.synchronize(handle)
    else:
        time.sleep(2.0)
        result = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="interrupted")
    assert result.tolist() == [n] * 3


@pytest.mark.ranks(2)
def test_ctrl_c_ends_a_wait_inside_a_verb(rank: int, n: int) -> None:
    """Ctrl-C inside allreduce() itself: the call ends, and the collective completes behind it without harm."""
    if rank == 0:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            hvd.allreduce(torch.ones(3), name="interrupted inside")
    else:
        time.sleep(2.0)
        hvd.allreduce(torch.ones(3), name="interrupted inside")
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [n] * 3
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name="interrupted inside").tolist() == [n] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FUSION_THRESHOLD_BYTES", "0"),
        ("FUSION_THRESHOLD_BYTES", "100"),
        ("CACHE_CAPACITY", "0"),
        ("CACHE_CAPACITY", "3"),
    ],
)
@pytest.mark.usefixtures("own_environment")
def test_settings_change_no_result(name: str, value: str, rank: int, n: int) -> None:
    """Without fusion, with a tiny buffer, without a cache or with one that always overflows: the same results.

    The settings are rank 0's; the others' own differ here and do not count.
    """
    hvd.shutdown()
    os.environ[f"WORKBENCH_{name}"] = value if rank == 0 else str(1 + int(value) * 7)
    hvd.init()
    for step in range(6):
        order = torch.randperm(20, generator=torch.Generator().manual_seed(step * n + rank)).tolist()
        handles = {
            i: hvd.allreduce_async(torch.full((i + 1,), float(rank * i + step)), op=hvd.Sum, name=f"t{i}")
            for i in order
        }
        for i, handle in handles.items():
            assert handle.wait(30).tolist() == [n * (n - 1) / 2 * i + n * step] * (i + 1)
