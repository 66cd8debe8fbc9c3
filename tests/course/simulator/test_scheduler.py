"""The simulator: deterministic, on a clock that follows the formula, and never stuck."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from running import eventually

from workbench.collectives import ring_allreduce
from workbench.course.simulator import DeadlockError, simulate
from workbench.course.simulator.communicator import Communicator
from workbench.errors import DeadlineError, MismatchError, WorkbenchError

SIZES = (1, 2, 3, 4, 7, 8, 16)


def on_ring(comm: Any, length: int) -> Any:
    """The installed ring, over the simulated link."""
    array = np.arange(length, dtype=float) * (comm.rank + 1)
    ring_allreduce(comm, array)
    return array


def test_the_ring_takes_what_the_formula_says() -> None:
    """2(n - 1)(α + β·K/n) seconds, where n divides the length; to rounding."""
    for n in [2, 4, 8, 16]:
        alpha_s, beta_s, length = 1e-5, 1e-9, 16_000
        run = simulate(n, on_ring, length, alpha_s=alpha_s, beta_s=beta_s)
        assert run.time_s == pytest.approx(2 * (n - 1) * (alpha_s + beta_s * 8 * length / n), rel=1e-9)
        assert run.sent() == [(2 * (n - 1), 2 * (n - 1) * 8 * length // n)] * n
        assert run.received() == run.sent()


def test_the_installed_ring_is_right_on_it() -> None:
    """The function that real ranks run gives the sum in the simulator, too."""
    for length in [0, 1, 5, 1000]:
        for n in SIZES:
            run = simulate(n, on_ring, length)
            assert all(np.array_equal(x, np.arange(length) * sum(range(1, n + 1))) for x in run.results)


def chatter(comm: Any) -> Any:
    """All kinds of messages, in an order that depends on ranks."""
    request = comm.isend(np.ones(5000 * comm.rank), dest=(comm.rank + 2) % comm.size, tag=7)
    comm.compute(1e-5 * comm.rank)
    got = comm.recv(source=(comm.rank - 2) % comm.size, tag=7)
    request.wait()
    first = comm.recv() if comm.rank == 0 else comm.send(comm.rank, dest=0)
    rest = [comm.recv() for _ in range(comm.size - 2)] if comm.rank == 0 else []
    return len(got), first, rest, comm.allgather(comm.rank)


def test_every_run_is_the_same() -> None:
    """Results, clocks and messages do not depend on how the machine runs the threads."""
    runs = [simulate(5, chatter) for _ in range(10)]
    assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize("n", [1, 3, 8])
def test_collectives_give_what_mpi4py_s_give(n: int) -> None:
    """Each lower-case collective against its definition, with every root."""
    for root in range(n):

        def every(comm: Any, root: int = root) -> Any:
            values = [10 * comm.rank + i for i in range(n)]
            array = np.full(3, comm.rank)
            total = np.empty(3, int)
            comm.Bcast(array, root=root)
            comm.Allreduce(array, total)
            comm.barrier()
            return (
                comm.bcast(comm.rank, root=root),
                comm.reduce(comm.rank, root=root),
                comm.allreduce(comm.rank, op=max),
                comm.gather(comm.rank, root=root),
                comm.allgather(comm.rank),
                comm.scatter(values if comm.rank == root else None, root=root),
                comm.alltoall(values),
                array.tolist(),
                total.tolist(),
            )

        for rank, got in enumerate(simulate(n, every).results):
            assert got == (
                root,
                sum(range(n)) if rank == root else None,
                n - 1,
                list(range(n)) if rank == root else None,
                list(range(n)),
                10 * root + rank,
                [10 * other + rank for other in range(n)],
                [root] * 3,
                [root * n] * 3,
            )


def test_a_tree_broadcast_takes_log_n_rounds() -> None:
    """n - 1 messages, and ceil(log2 n) times one message's time."""
    for n in SIZES[1:]:
        run = simulate(n, lambda comm: comm.bcast(np.ones(50_000)))
        assert len(run.messages) == n - 1
        one = run.messages[0].end - run.messages[0].begin
        assert run.time_s == pytest.approx((n - 1).bit_length() * one)


# --- deadlocks ----------------------------------------------------------------------------------------


def blocking_ring(comm: Any, length: int) -> Any:
    """Everybody sends first."""
    comm.send(np.ones(length), dest=(comm.rank + 1) % comm.size)
    return comm.recv(source=(comm.rank - 1) % comm.size)


def test_large_messages_hang_where_small_ones_do_not() -> None:
    """The same code passes with what is sent eagerly, and is a deadlock with what is not; the circle is named."""
    assert len(simulate(4, blocking_ring, 100).messages) == 4
    with pytest.raises(DeadlockError, match="circle: 0 → 1 → 2 → 3 → 0") as caught:
        simulate(4, blocking_ring, 100_000)
    waits = caught.value.waits
    assert [(wait.rank, wait.peer, wait.verb, wait.nbytes) for wait in waits] == [
        (rank, (rank + 1) % 4, "send", 800_000) for rank in range(4)
    ]
    assert all("comm.send(np.ones(length)" in wait.where for wait in waits)


def test_who_waits_for_a_rank_that_has_returned_is_told() -> None:
    """One rank takes a step less: the text says that it has returned."""

    def uneven(comm: Any) -> None:
        for _ in range(3 - (comm.rank == 2)):
            comm.sendrecv(1, dest=(comm.rank + 1) % 3, source=(comm.rank - 1) % 3)

    with pytest.raises(DeadlockError, match="rank 2 has returned"):
        simulate(3, uneven)


def test_polling_for_ever_is_a_deadlock() -> None:
    """A loop over test() that nobody will ever end is found, though every rank is busy."""

    def poll(comm: Any) -> None:
        request = comm.irecv(source=1 - comm.rank)
        while not request.test()[0]:
            pass

    with pytest.raises(DeadlockError, match="irecv"):
        simulate(2, poll)


def test_a_loop_without_messages_is_ended() -> None:
    """A rank that never communicates holds the token; the deadline ends it, and its thread with it."""
    before = threading.active_count()

    def spin(comm: Any) -> None:
        while True:
            pass

    with pytest.raises(DeadlineError, match=r"did not end within [\d.]+ s"):
        simulate(3, spin, deadline_s=0.3)
    assert eventually(lambda: threading.active_count() == before)


def test_what_a_rank_raises_comes_out() -> None:
    """The first error ends all, and says which rank it was; a learner's `except Exception` catches no end of ours."""
    for rank in range(3):

        def fails(comm: Any, rank: int = rank) -> None:
            if comm.rank == rank:
                raise ZeroDivisionError("mine")
            try:
                comm.recv(source=rank)
            except Exception:  # noqa: BLE001 - as a learner writes it
                pytest.fail("the simulator's own end was caught")

        with pytest.raises(ZeroDivisionError, match="mine") as caught:
            simulate(3, fails)
        assert caught.value.rank == rank


# --- misuse -------------------------------------------------------------------------------------------


def test_a_buffer_that_is_reused_too_early_is_told() -> None:
    """An array that changes between Isend and wait is named, every time, not only when it happens to go wrong."""

    def early(comm: Any) -> None:
        x = np.ones(3)
        if comm.rank == 0:
            request = comm.Isend(x, dest=1)
            x += 1
            request.wait()
        else:
            comm.Recv(x, source=0)

    with pytest.raises(WorkbenchError, match="changed before wait"):
        simulate(2, early)


def test_irecv_fills_its_buffer_at_wait_only() -> None:
    """Who reads before wait() reads the old numbers, every time."""

    def read(comm: Any) -> Any:
        x = np.zeros(2)
        if comm.rank == 0:
            comm.Send(np.ones(2), dest=1)
            return None
        request = comm.Irecv(x, source=0)
        before = x.sum()
        request.wait()
        return before, x.sum()

    assert simulate(2, read).results[1] == (0.0, 2.0)


def test_mpi_s_any_source_is_any_source() -> None:
    """Who has imported mpi4py may name its constant; by default a receive takes from any rank, too."""
    mpi = pytest.importorskip("mpi4py.MPI")

    def both(comm: Any) -> Any:
        if comm.rank:
            return comm.send(comm.rank, dest=0)
        return sorted([comm.recv(source=mpi.ANY_SOURCE), comm.recv()])

    assert simulate(3, both).results[0] == [1, 2]


def test_misuse_is_explained() -> None:
    """What MPI would crash on, or take for something else, is an error that says what to do."""
    for wrong, error, words in [
        (lambda comm: comm.send(1, dest=comm.size), ValueError, "there is no rank 2 among 2"),
        (lambda comm: comm.recv(source=comm.rank - 1), ValueError, "there is no rank -1 among 2"),
        (lambda comm: comm.Send([1, 2], dest=0), TypeError, "take numpy arrays, not list"),
        (lambda comm: comm.Send(np.ones((4, 4)).T, dest=0), TypeError, "contiguous"),
        (lambda comm: comm.Sendrecv(np.ones(3), 1 - comm.rank, 0, np.ones(2), 1 - comm.rank), ValueError, "room for 2"),
        (lambda comm: comm.scatter([1], root=comm.rank), ValueError, "a list of 2 items"),
    ]:
        with pytest.raises(error, match=words):
            simulate(2, wrong)


def test_messages_do_not_overtake() -> None:
    """Two messages of one rank arrive in the order of sending, and a tag picks one out."""

    def two(comm: Any) -> Any:
        if comm.rank == 0:
            for value, tag in ((1, 5), (2, 5), (3, 6)):
                comm.send(value, dest=1, tag=tag)
            return None
        return comm.recv(source=0, tag=6), comm.recv(source=0), comm.recv(source=0)

    assert simulate(2, two).results[1] == (3, 1, 2)


def test_it_has_mpi4py_s_names() -> None:
    """Every verb that the simulator has, mpi4py's communicator has, with the same parameters' names.

    All but compute(), which stands for a rank's own work, and sends nothing.
    """
    import inspect

    from mpi4py import MPI

    ours = [name for name in vars(Communicator) if not name.startswith(("_", "post", "finish", "rank", "size"))]
    ours.remove("compute")
    assert {"send", "Sendrecv", "irecv", "allreduce", "Bcast"} <= set(ours)
    for name in ours:
        theirs = getattr(MPI.Comm, name)
        text = theirs.__doc__ or ""
        for parameter in list(inspect.signature(getattr(Communicator, name)).parameters)[1:]:
            assert parameter in text, (name, parameter, text)


def test_collectives_that_differ_are_told() -> None:
    """In another order, of another kind or shape, or with another root: who called what, where; nothing is added up."""

    def reversed_on_rank_0(comm: Any) -> Any:
        values = [1.0, np.ones(3)]
        return [comm.allreduce(value) for value in (values[::-1] if comm.rank == 0 else values)]

    with pytest.raises(MismatchError) as raised:
        simulate(3, reversed_on_rank_0)
    told = str(raised.value).splitlines()
    assert told[0] == "Collective number 1 is not the same on all ranks."
    assert told[1].startswith("  rank 0: allreduce(an array of shape (3,)) (in test_scheduler.py, line ")
    assert told[2].startswith("  rank 1: allreduce(a number) (in test_scheduler.py, line ")
    for wrong in (
        lambda comm: comm.barrier() if comm.rank else comm.bcast(1),
        lambda comm: comm.bcast(1, root=comm.rank),
        lambda comm: comm.reduce(np.ones(2 + comm.rank)),
        lambda comm: comm.Allreduce(np.ones(2 + comm.rank), np.ones(2 + comm.rank)),
    ):
        with pytest.raises(MismatchError, match="Collective number 1 is not the same on all ranks"):
            simulate(2, wrong)


def test_collectives_of_equal_calls_pass() -> None:
    """Kinds of numbers may differ, and so may objects that are no arrays of numbers."""
    assert simulate(2, lambda comm: comm.allreduce(1 if comm.rank else np.float64(2.5))).results == [3.5, 3.5]
    assert simulate(2, lambda comm: comm.allreduce([comm.rank] * comm.rank)).results == [[1], [1]]
    assert [len(each) for each in simulate(2, lambda comm: comm.allgather(np.ones(comm.rank))).results[0]] == [0, 1]


def test_a_wait_has_the_name_of_the_collective_that_was_written() -> None:
    """Not of what it is made of; and who has returned is said to have come how far."""

    def once_more_on_rank_0(comm: Any) -> None:
        for _ in range(1 + (comm.rank == 0)):
            comm.allreduce(1)

    with pytest.raises(DeadlockError) as raised:
        simulate(2, once_more_on_rank_0)
    (told,) = str(raised.value).splitlines()[1:]
    assert told.startswith("  rank 0 waits in allreduce() for rank 1 (in test_scheduler.py, line ")
    assert "rank 1 has returned, after 1 collective, the last allreduce(a number) (in test_scheduler.py" in told
    assert raised.value.waits[0].verb == "allreduce"
