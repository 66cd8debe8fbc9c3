"""A handle: the future of a result. The caller holds it, and the engine finishes it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from workbench.common.waiting import Owner
from workbench.errors import WaitTimeoutError

Callback = Callable[["Handle"], None]
LONG_WAIT_S = 0.1
"""A wait that takes longer may be reported to rank 0, which looks for deadlocks."""

_NOBODY = Owner()


def _nothing() -> None:
    """The default of :attr:`Handle.joins` and :attr:`Handle.raises`."""


class Handle:
    """The future of one collective's result.

    Attributes:
        owner: finishes it.
        request: what was submitted.
        joins: makes the waiting thread's GPU stream wait for the result.
        raises: called on the waiting thread before the error is raised there.
        tuned: autotune's latest choice when it was finished, see :attr:`workbench.core.engine.Engine.tuned`.

    Example:
        >>> handle = Handle("allreduce.x")
        >>> handle.poll()
        False
        >>> handle.finish(42)
        >>> handle.wait(timeout_s=1)
        42
    """

    __slots__ = (
        "_callbacks", "_done", "_error", "_value", "_waiters", "joins", "name", "owner", "raises", "request", "tuned",
    )  # fmt: skip
    _lock = threading.Lock()  # one for all: it is held for the length of an assignment

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner: Owner = _NOBODY
        self.request: Any = None
        self.joins: Callable[[], None] = _nothing
        self.raises: Callable[[], None] = _nothing
        self.tuned: tuple[int, int] | None = None
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: tuple[Callback, ...] = ()
        self._waiters: tuple[threading.Lock, ...] = ()  # one held lock per thread that waits

    def poll(self) -> bool:
        """True when :meth:`wait` would not block."""
        return self._done

    def wait(self, timeout_s: float | None = None) -> Any:
        """Block until the result is there, and return it; Ctrl-C interrupts the wait.

        Of a tensor on a GPU it returns when the collective is queued there: the stream that is current on this thread
        waits for the result then, and the CPU does not.

        Without ``timeout_s`` the wait ends with the collective itself: the runtime ends every collective,
        with an error if need be (a rank that raised, left or was lost).

        Raises:
            CollectiveError: the collective failed; the same error on every rank.
            WaitTimeoutError: ``timeout_s`` seconds went by, on this rank alone. The collective goes on, the handle
                stays valid.
            RuntimeError: called on the engine's own thread (from a callback), which would never end.
        """
        if not self._done:
            if self.owner.runs_here():
                raise RuntimeError(f"wait() for {self.name!r} on the engine's thread would never end: use a callback.")
            if not self._wait(timeout_s):
                raise WaitTimeoutError(f"{self.name!r} did not finish within {timeout_s:.3g} s on this rank.")
        if self._error is not None:
            self.raises()
            # A new traceback each time, without the one of an earlier wait on the same handle.
            raise self._error.with_traceback(None)
        self.joins()
        return self._value

    def _wait(self, timeout_s: float | None) -> bool:
        first = LONG_WAIT_S if timeout_s is None else max(0.0, min(timeout_s, LONG_WAIT_S))
        begun = time.monotonic()
        self.owner.awaited(self, first)
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if self._done:
                return True
            self._waiters = (*self._waiters, waiter)
        if waiter.acquire(timeout=max(0.0, begun + first - time.monotonic())):
            return True
        return self.owner.long_wait(self, waiter, -1 if timeout_s is None else max(0.0, timeout_s - first))

    @property
    def error(self) -> BaseException | None:
        """Why the collective failed; None while in flight and after success."""
        return self._error

    @property
    def result(self) -> Any:
        """The result, without waiting; None while in flight and after failure."""
        return self._value

    def add_done_callback(self, callback: Callback) -> None:
        """Call ``callback(handle)`` when done: on the engine's thread, or at once. Its exceptions are only logged."""
        with self._lock:
            if not self._done:
                self._callbacks = (*self._callbacks, callback)
                return
        _call(callback, self)

    def finish(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set the result or the error; the first call wins. For the engine."""
        with self._lock:
            if self._done:
                return
            self._value, self._error, self._done = value, error, True
            callbacks, self._callbacks = self._callbacks, ()
            waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            waiter.release()
        for callback in callbacks:
            _call(callback, self)


class GroupHandle:
    """The handles of a group as one: done when all are; the result is the list of results.

    Attributes:
        members: in the order of the tensors.
    """

    def __init__(self, members: list[Handle]) -> None:
        self.members = members

    def poll(self) -> bool:
        """True when :meth:`wait` would not block."""
        return all(handle.poll() for handle in self.members)

    def wait(self, timeout_s: float | None = None) -> list[Any]:
        """Wait for all, ``timeout_s`` for each; errors as :meth:`Handle.wait`."""
        return [handle.wait(timeout_s) for handle in self.members]


def _call(callback: Callback, handle: Handle) -> None:
    try:
        callback(handle)
    except Exception:
        logging.getLogger("workbench").exception("A callback of %r raised; the result is not affected.", handle.name)
