"""The promise of a result, seen by who waits and by who finishes it."""

from __future__ import annotations

import logging
import threading
import time
import traceback

import pytest

from workbench.common.waiting import Owner
from workbench.core.handle import Handle
from workbench.errors import CollectiveError, MismatchError, WaitTimeoutError


def test_wait_returns_what_finish_gave() -> None:
    """Another thread's result ends the wait."""
    handle = Handle("x")
    timer = threading.Timer(0.05, handle.finish, [42])
    timer.start()
    assert handle.wait(timeout_s=10) == 42
    timer.join()
    assert handle.poll()
    assert (handle.result, handle.error) == (42, None)


def test_a_deadline_leaves_the_handle_valid() -> None:
    """WaitTimeoutError, a TimeoutError but no CollectiveError, ends one wait only; the result can still come."""
    handle = Handle("grad")
    started = time.monotonic()
    with pytest.raises(WaitTimeoutError, match="'grad'") as caught:
        handle.wait(timeout_s=0.02)
    assert isinstance(caught.value, TimeoutError)
    assert not isinstance(caught.value, CollectiveError)
    assert time.monotonic() - started >= 0.02
    assert not handle.poll()
    handle.finish("late")
    assert handle.wait(timeout_s=0) == "late"


def test_an_error_is_raised_at_each_wait() -> None:
    """Every wait raises the same error, and its traceback does not grow from wait to wait."""
    handle, error, depths = Handle("x"), MismatchError("shapes"), []
    handle.finish(error=error)
    for _ in range(3):
        with pytest.raises(MismatchError) as caught:
            handle.wait()
        assert caught.value is error
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(set(depths)) == 1
    assert (handle.result, handle.error) == (None, error)


def test_the_first_end_is_the_end() -> None:
    """A handle that is done keeps its result; its callbacks are called once."""
    handle, calls = Handle("x"), []
    handle.add_done_callback(calls.append)
    handle.finish(1)
    handle.finish(2)
    handle.finish(error=CollectiveError("too late"))
    assert handle.wait() == 1
    assert calls == [handle]


def test_callbacks_run_in_order_and_see_the_result() -> None:
    """Callbacks come in the order in which they were added, and the handle is done when they run."""
    handle, seen = Handle("x"), []
    for i in range(3):
        handle.add_done_callback(lambda done, i=i: seen.append((i, done.poll(), done.wait(0))))
    assert seen == []
    handle.finish("v")
    assert seen == [(0, True, "v"), (1, True, "v"), (2, True, "v")]


def test_a_late_callback_runs_at_once() -> None:
    """A callback that is added to a handle that is done is called at once, in the caller's thread."""
    handle, threads = Handle("x"), []
    handle.finish(1)
    handle.add_done_callback(lambda done: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]


def test_a_callback_that_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The other callbacks still run, the result stays, the log has the name and the exception."""
    handle, calls = Handle("grad7"), []

    def broken(done: Handle) -> None:
        raise ZeroDivisionError("in the callback")

    handle.add_done_callback(broken)
    handle.add_done_callback(calls.append)
    with caplog.at_level(logging.ERROR, logger="workbench"):
        handle.finish(5)
        handle.add_done_callback(broken)
    assert handle.wait() == 5
    assert calls == [handle]
    assert [("grad7" in record.message, record.exc_info[0]) for record in caplog.records] == [
        (True, ZeroDivisionError)
    ] * 2


def test_a_callback_may_add_a_callback() -> None:
    """No lock is held while callbacks run."""
    handle, calls = Handle("x"), []
    handle.add_done_callback(lambda done: done.add_done_callback(calls.append))
    handle.finish(1)
    assert calls == [handle]


def test_the_owner_must_not_wait() -> None:
    """A wait on the engine's own thread raises at once; any other thread waits, and a finished handle may be read."""
    handle, here = Handle("x"), threading.get_ident()

    class Engine(Owner):
        def runs_here(self) -> bool:
            return threading.get_ident() == here

    handle.owner = Engine()
    for timeout_s in (None, 0.01):
        with pytest.raises(RuntimeError, match="engine's thread"):
            handle.wait(timeout_s)
    elsewhere: list[object] = []
    waiter = threading.Thread(target=lambda: elsewhere.append(handle.wait(10)))
    waiter.start()
    handle.finish(3)
    waiter.join()
    assert elsewhere == [3]
    assert handle.wait() == 3


def test_no_callback_is_lost_in_the_race_with_finish() -> None:
    """However adding and finishing interleave, each callback is called exactly once."""
    for _ in range(200):
        handle, calls = Handle("x"), []
        both = threading.Barrier(2)

        def add(handle: Handle = handle, calls: list[Handle] = calls, both: threading.Barrier = both) -> None:
            both.wait()
            handle.add_done_callback(calls.append)

        adder = threading.Thread(target=add)
        adder.start()
        both.wait()
        handle.finish(1)
        adder.join()
        assert calls == [handle]
