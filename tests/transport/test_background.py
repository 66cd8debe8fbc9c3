"""Calls that nobody can interrupt, on threads of their own: whoever waits for them keeps a deadline nevertheless."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from workbench.errors import DeadlineError, PeerLostError
from workbench.transport.background import CallThread, background

LONG_S = 10.0


def nothing() -> None:
    """The tick of somebody who only waits."""


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    """A call that ends with the test."""
    over = threading.Event()
    yield lambda: (over.wait(LONG_S), None)[1]
    over.set()


@pytest.fixture
def worker() -> Iterator[CallThread]:
    """Ended after the test, whatever it hangs in."""
    one = CallThread("test-worker")
    yield one
    one._todo.put(None)


def test_calls_are_made_one_after_the_other_on_one_thread(worker: CallThread) -> None:
    """Whoever asks; and each gets the answer to its own call."""
    made: list[tuple[str, int]] = []

    def call(number: int) -> int:
        made.append((threading.current_thread().name, number))
        time.sleep(0.001)
        return -number

    answers: dict[int, int] = {}

    def ask(first: int) -> None:
        for number in range(first, first + 20):
            answers[number] = worker.call(lambda: call(number), nothing, LONG_S)  # noqa: B023 - called at once

    threads = [threading.Thread(target=ask, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert answers == {100 * i + k: -(100 * i + k) for i in range(4) for k in range(20)}
    assert {name for name, _ in made} == {"test-worker"}
    for i in range(4):
        assert [number % 100 for _, number in made if number // 100 == i] == list(range(20))


def test_what_begins_comes_first() -> None:
    """On the same thread."""
    seen: list[str] = []
    worker = CallThread("test-begins", begin=lambda: seen.append(threading.current_thread().name))
    worker.call(lambda: seen.append("call"), nothing, LONG_S)
    worker.end()
    assert seen == ["test-begins", "call"]


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt(), SystemExit(3), PeerLostError("gone")])
def test_errors_travel(worker: CallThread, error: BaseException) -> None:
    """The call's own exception is raised where it was asked for; the worker goes on."""

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        worker.call(fail, nothing, LONG_S)
    assert caught.value is error
    assert worker.call(lambda: 42, nothing, LONG_S) == 42


def test_an_error_of_a_queue_travels_too(worker: CallThread) -> None:
    """It is as good as any other."""

    def fail() -> None:
        raise queue.Empty("mine")

    with pytest.raises(queue.Empty):
        worker.call(fail, nothing, LONG_S)


def test_the_deadline(worker: CallThread, hang: Callable[[], None]) -> None:
    """In time, and the next call, which stands behind the one that hangs, has a deadline, too."""
    for _ in range(2):
        begun = time.monotonic()
        with pytest.raises(DeadlineError, match=r"within 0\.2 s"):
            worker.call(hang, nothing, 0.2)
        assert time.monotonic() - begun >= 0.2


def test_an_answer_that_came_too_late_is_nobody_elses(worker: CallThread) -> None:
    """After a deadline the next caller gets its own answer."""
    begun = threading.Event()
    with pytest.raises(DeadlineError):
        worker.call(lambda: begun.wait(LONG_S), nothing, 0.1)
    begun.set()
    assert worker.call(lambda: "mine", nothing, LONG_S) == "mine"


def test_ticks(worker: CallThread) -> None:
    """Some twenty a second amid a wait, none for what is quick, on the thread that waits."""
    ticks: list[int] = []
    worker.call(lambda: time.sleep(0.5), lambda: ticks.append(threading.get_ident()), LONG_S)
    assert 2 <= len(ticks) <= 11
    assert set(ticks) == {threading.get_ident()}
    worker.call(nothing, lambda: pytest.fail("nobody had to wait"), LONG_S)


def test_a_tick_that_raises_ends_the_wait(worker: CallThread, hang: Callable[[], None]) -> None:
    """Long before the deadline."""

    def lost() -> None:
        raise PeerLostError("rank 1 is gone")

    with pytest.raises(PeerLostError, match="rank 1 is gone"):
        worker.call(hang, lost, LONG_S)


def test_the_end() -> None:
    """The thread ends, after the calls that came before."""
    worker, made = CallThread("test-end"), []
    for number in range(3):
        worker._todo.put((lambda number=number: made.append(number), queue.SimpleQueue()))
    worker.end()
    assert made == [0, 1, 2]
    assert not worker._thread.is_alive()


def test_the_end_does_not_wait_for_a_call_that_hangs(worker: CallThread, hang: Callable[[], None]) -> None:
    """Longer than a moment; then the thread ends with the call."""
    with pytest.raises(DeadlineError):
        worker.call(hang, nothing, 0.05)
    begun = time.monotonic()
    worker.end()
    assert time.monotonic() - begun < 4


def test_in_the_background(hang: Callable[[], None]) -> None:
    """A result, an error, or a deadline."""
    assert background(lambda: 6 * 7).result(LONG_S) == 42
    with pytest.raises(ZeroDivisionError):
        background(lambda: 1 // 0).result(LONG_S)
    with pytest.raises(concurrent.futures.TimeoutError):
        background(hang).result(0.1)
