"""Calls that block and cannot be interrupted, on a thread of their own: whoever waits for them can keep a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from workbench.errors import DeadlineError

T = TypeVar("T")
_TICK_S = 0.05
_END_S = 2.0


def background(function: Callable[[], T]) -> Future[T]:
    """Begin ``function()``, which must release the GIL while it blocks.

    ``result(timeout_s)`` waits for it; Ctrl-C ends the wait. The call goes on nevertheless, but the process can end.

    Example:
        >>> background(lambda: 6 * 7).result(timeout=10)
        42
    """
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(function, future), name="workbench-background", daemon=True).start()
    return future


def patient(future: Future[T], tick: Callable[[], None], timeout_s: float) -> T:
    """The future's result.

    Args:
        future: see :func:`background`.
        tick: called some twenty times a second; it may raise to end the wait.
        timeout_s: deadline.

    Raises:
        TimeoutError: the deadline has passed. The call goes on.
    """
    deadline = time.monotonic() + timeout_s
    while not future.done() and time.monotonic() < deadline:
        wait([future], _TICK_S)
        tick()
    return future.result(0)


def _run(function: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001 - result() raises it
        future.set_exception(error)


class CallThread:
    """One thread that makes one blocking call after the other.

    Args:
        name: of the thread.
        begin: called first on it.

    Example:
        >>> worker = CallThread("example")
        >>> worker.call(lambda: 6 * 7, tick=lambda: None, timeout_s=10)
        42
        >>> worker.end()
    """

    def __init__(self, name: str, begin: Callable[[], None] = lambda: None) -> None:
        self._todo: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Future[Any]]] | None]
        self._todo, self._begin = queue.SimpleQueue(), begin
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T], tick: Callable[[], None], timeout_s: float) -> T:
        """``function()``, which must release the GIL while it blocks.

        Args:
            function: runs on the worker's thread.
            tick: called some twenty times a second; it may raise to end the wait.
            timeout_s: deadline.

        Raises:
            DeadlineError: the deadline has passed. The call goes on, and the worker with it.
        """
        done: queue.SimpleQueue[Future[T]] = queue.SimpleQueue()
        deadline = time.monotonic() + timeout_s
        self._todo.put((function, done))
        while True:
            try:
                future = done.get(timeout=_TICK_S)
            except queue.Empty:
                tick()
            else:
                return future.result()  # here, for what the call raises may be a queue.Empty, too
            if time.monotonic() > deadline:
                raise DeadlineError(f"No answer within {timeout_s:g} s (WORKBENCH_DATA_TIMEOUT_S).")

    def end(self) -> None:
        """Let the thread end, when its call does."""
        self._todo.put(None)
        self._thread.join(_END_S)  # or the process would abort at its exit, with the thread inside a library

    def _serve(self) -> None:
        self._begin()
        while (todo := self._todo.get()) is not None:
            function, done = todo
            future: Future[Any] = Future()
            _run(function, future)
            done.put(future)
