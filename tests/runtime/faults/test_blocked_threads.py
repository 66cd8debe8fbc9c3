"""A rank says that it is blocked when all its threads that submit wait, and where the user's code stands."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait

import pytest
from interrupted import interrupts
from running import eventually

from workbench.common.waiting import Owner
from workbench.core import handle as handles
from workbench.core.handle import Handle
from workbench.core.messages import Kind, Request
from workbench.errors import WaitTimeoutError
from workbench.runtime.events import Blocked
from workbench.runtime.faults.blocked_threads import BlockedThreads, called_at, users_line


class Looking(Owner):
    """Looks after long waits as the engine does."""

    def __init__(self, waits: BlockedThreads) -> None:
        self._waits = waits

    def long_wait(self, handle: Handle, waiter: threading.Lock, timeout_s: float) -> bool:
        """See :class:`Owner`."""
        return self._waits.long_wait(handle.request, waiter, timeout_s)


def test_a_wait_is_told_with_the_users_line_and_its_end() -> None:
    """What it waits for, where, and that it goes on."""
    told: list[Blocked] = []
    waits = BlockedThreads(3, told.append)
    waits.submits()
    with waits.blocked(0, "allreduce.x"):
        pass
    ((process_set, name, where),) = told[0].waits
    assert (told[0].rank, process_set, name) == (3, 0, "allreduce.x")
    assert where.startswith("in test_blocked_threads.py, line ")
    assert where.endswith('with waits.blocked(0, "allreduce.x")')
    assert told[1:] == [Blocked(3, ())]


def test_a_rank_is_not_blocked_while_another_thread_may_submit() -> None:
    """Only when the last of its threads waits, too; a thread that has ended does not count."""
    told: list[Blocked] = []
    waits, go, submitted = BlockedThreads(0, told.append), threading.Event(), threading.Event()

    def other() -> None:
        waits.submits()
        submitted.set()
        go.wait(10)
        with waits.blocked(0, "b"):
            pass

    thread = threading.Thread(target=other)
    thread.start()
    assert submitted.wait(10)
    waits.submits()
    with waits.blocked(0, "a"):
        assert told == []
        assert waits.others()
        go.set()
        thread.join()
    assert [[name for _, name, _ in event.waits] for event in told] == [["a", "b"], [], []]
    assert not waits.others()


def test_a_short_wait_says_nothing() -> None:
    """A handle tells of its wait only after a moment, and of nothing when it is done already."""
    told: list[Blocked] = []
    waits, handle = BlockedThreads(0, told.append), Handle("x")
    handle.owner, handle.request = Looking(waits), Request("x", Kind.BARRIER)
    threading.Timer(0.02, handle.finish, (1,)).start()
    assert handle.wait() == 1
    assert told == []
    late = Handle("y")
    late.owner, late.request = Looking(waits), Request("y", Kind.BARRIER)
    threading.Timer(0.4, late.finish, (2,)).start()
    assert late.wait(10) == 2
    assert [bool(event.waits) for event in told] == [True, False]


def test_the_users_line_skips_the_libraries() -> None:
    """The innermost line that is neither this package's nor the standard library's."""
    where = list(map(lambda _: users_line(), [0]))[0]  # noqa: C417, RUF015 - called from a lambda, on this line
    assert where.startswith("in test_blocked_threads.py, line ")
    assert "users_line(), [0]" in where


class Rank:
    """A rank's threads: this one, which has submitted, and another.

    Attributes:
        told: what rank 0 is told.
    """

    def __init__(self) -> None:
        self.told: list[Blocked] = []
        self.waits = BlockedThreads(0, self.told.append)
        self.waits.submits()
        self.stuck, self.go = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Wait for a tensor, on another thread."""
        self.waits.submits()
        with self.waits.blocked(0, "x"):
            self.stuck.set()
            assert self.go.wait(20)

    def is_blocked(self, action: Callable[[Rank], object], timeout_s: float) -> bool:
        """Does rank 0 learn that this rank is blocked while ``action`` runs? That has :attr:`go` to wait for."""
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(self._look, timeout_s)
            action(self)
            return looking.result(20)

    def _look(self, timeout_s: float) -> bool:
        assert self.stuck.wait(10)
        until = time.monotonic() + timeout_s
        while not (found := any(event.waits for event in self.told)) and time.monotonic() < until:
            self.waits.look(time.monotonic())
            time.sleep(0.001)
        self.go.set()
        return found


def with_future(use: Callable[[Future[None]], object]) -> Callable[[Rank], None]:
    """An action: another thread waits for a tensor, and this one does something with its future."""

    def action(rank: Rank) -> None:
        with ThreadPoolExecutor(1) as pool:
            use(pool.submit(rank.wait))
            rank.go.wait(20)

    return action


def with_thread(use: Callable[[threading.Thread], object]) -> Callable[[Rank], None]:
    """An action: another thread waits for a tensor, and this one does something with it."""

    def action(rank: Rank) -> None:
        thread = threading.Thread(target=rank.wait)
        thread.start()
        use(thread)
        thread.join(20)

    return action


def leave_a_pool(rank: Rank) -> None:
    """An action: the end of a pool's block waits for its threads."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(rank.wait)


HELD_UP = {
    "result": with_future(lambda future: future.result()),
    "exception": with_future(lambda future: future.exception()),
    "wait": with_future(lambda future: wait([future])),
    "as_completed": with_future(lambda future: list(as_completed([future]))),
    "join": with_thread(lambda thread: thread.join()),
    "a pool's end": leave_a_pool,
}
GOES_ON = {
    "result": with_future(lambda future: future.result(20)),
    "wait": with_future(lambda future: wait([future], 20)),
    "join": with_thread(lambda thread: thread.join(20)),
    "something else": with_future(lambda future: time.sleep(0.3)),
}


@pytest.mark.parametrize("action", HELD_UP)
def test_who_waits_for_a_thread_that_waits_is_held_up(action: str) -> None:
    """A thread that has submitted can submit nothing before the thread goes on that it waits for."""
    assert Rank().is_blocked(HELD_UP[action], 10.0)


@pytest.mark.parametrize("action", GOES_ON)
def test_who_waits_for_a_while_goes_on(action: str) -> None:
    """With a timeout, or in something else than a thread, it may soon submit what the other ranks wait for."""
    assert not Rank().is_blocked(GOES_ON[action], 0.3)


def test_who_waits_for_a_thread_that_computes_goes_on() -> None:
    """What that thread computes may be what this one submits next."""

    def action(rank: Rank) -> None:
        with ThreadPoolExecutor(2) as pool:
            pool.submit(rank.wait)
            pool.submit(rank.go.wait, 20).result()

    assert not Rank().is_blocked(action, 0.3)


def test_the_last_thread_that_goes_on_may_end() -> None:
    """When a thread that has submitted ends, the rank is blocked if all the others wait, and it says so then."""
    rank, end = Rank(), threading.Event()

    def other() -> None:
        rank.waits.submits()
        assert end.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    with rank.waits.blocked(0, "x"):
        rank.waits.look(time.monotonic())
        assert rank.told == []
        end.set()
        thread.join()
        until = time.monotonic() + 10
        while not rank.told and time.monotonic() < until:
            rank.waits.look(time.monotonic())
    assert [bool(event.waits) for event in rank.told] == [True, False]


def test_a_rank_that_was_blocked_goes_on_with_a_new_thread() -> None:
    """What another thread submits while all the others wait may be what the other ranks wait for: rank 0 is told."""
    rank = Rank()
    with rank.waits.blocked(0, "x"), ThreadPoolExecutor(1) as pool:
        assert [bool(event.waits) for event in rank.told] == [True]
        pool.submit(rank.waits.submits).result(10)
        assert [bool(event.waits) for event in rank.told] == [True, False]


def test_a_pool_without_work_submits_nothing() -> None:
    """A worker that has submitted, and has nothing to do, does not count as busy for ever."""
    rank = Rank()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(rank.waits.submits).result(10)
        assert eventually(lambda: not rank.waits.others())


def test_a_thread_that_bears_a_dead_ones_number_is_another() -> None:
    """The system uses the numbers of threads again: only who has submitted counts."""
    rank, go = Rank(), threading.Event()
    before = set()
    for _ in range(100):
        thread = threading.Thread(target=rank.waits.submits)
        thread.start()
        before.add(thread.ident)
        thread.join()
    threads = [threading.Thread(target=go.wait, args=[20]) for _ in range(20)]
    for thread in threads:
        thread.start()
    reused = before & {thread.ident for thread in threads}
    busy = rank.waits.others()
    go.set()
    for thread in threads:
        thread.join()
    assert not (reused and busy)


def test_who_was_interrupted_amid_a_wait_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever Ctrl-C hits a wait, this thread counts as one that goes on as soon as it does."""
    monkeypatch.setattr(handles, "LONG_WAIT_S", 0.001)
    told: list[Blocked] = []
    waits, handle = BlockedThreads(0, told.append), Handle("x")
    handle.owner, handle.request = Looking(waits), Request("x", Kind.BARRIER)

    def step() -> None:
        with contextlib.suppress(WaitTimeoutError):
            handle.wait(0.002)

    def other() -> None:
        with waits.blocked(0, "y"):
            assert told == []
            assert waits.others()

    with ThreadPoolExecutor(1) as threads:
        for _ in interrupts(step):
            waits.submits()
            told.clear()
            threads.submit(other).result(10)


def test_calls_of_a_graph_are_told_with_the_line_that_made_them() -> None:
    """Where one goes on, the others wait still; the thread that runs the graph waits in the framework's own files."""
    told: list[Blocked] = []
    waits, go, end, ready = BlockedThreads(0, told.append), threading.Event(), threading.Event(), threading.Barrier(3)

    def runs_a_graph() -> None:  # its innermost frame is in threading.py
        waits.submits()
        ready.wait(10)
        end.wait(10)

    more = [True]

    def call(name: str, until: threading.Event) -> None:
        with called_at(f"line of {name}", threading.__file__, lambda: more[0]), waits.blocked(0, name):
            ready.wait(10)
            until.wait(10)

    threads = [threading.Thread(target=runs_a_graph)]
    threads += [threading.Thread(target=call, args=each) for each in (("a", go), ("b", end))]
    for thread in threads:
        thread.start()
    while not any(len(event.waits) == 2 for event in list(told)):
        assert any(thread.is_alive() for thread in threads)
    go.set()
    threads[1].join(10)
    assert told[-2:] == [Blocked(0, ()), Blocked(0, ((0, "b", "line of b"),), more=True)]
    waits.look(1.0)
    more[0] = False  # the graph has come to its end
    waits.look(2.0)
    waits.look(3.0)
    assert told[-2:] == [Blocked(0, ((0, "b", "line of b"),), more) for more in (True, False)]
    end.set()
    for thread in threads:
        thread.join(10)
    assert told[-1] == Blocked(0, ())
