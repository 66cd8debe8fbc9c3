"""A learner's function ends, whatever it does: a loop that never ends is broken off from outside."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from workbench.errors import DeadlineError

_TIMES = 25  # a bare except may catch it


class Halt(BaseException):
    """Ends a thread; no ``except Exception`` of the learner's catches it."""


class _WithoutHalt:
    """A hook for exceptions that nobody can catch.

    A thread may run a callback of Python's own when Halt comes, a weak reference's for example: Halt is lost there, and
    it would not help the learner to read of it.

    Args:
        before: the hook for all others.
    """

    def __init__(self, before: Callable[[Any], object]) -> None:
        self._before = before

    def __call__(self, raised: Any) -> None:
        if raised.exc_type is not Halt:
            self._before(raised)


def halt(ident: int | None) -> None:
    """Raise :class:`Halt` in a thread, at its next line of Python."""
    if ident is not None:
        if not isinstance(sys.unraisablehook, _WithoutHalt):
            sys.unraisablehook = _WithoutHalt(sys.unraisablehook)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Halt))


class TimedThread(threading.Thread):
    """A daemon that its starter waits for, some seconds long, and then ends.

    Args:
        target: what it does.
        seconds: how long. A browser that cannot leave it ends it by itself.
    """

    def __init__(self, target: Callable[[], object], seconds: float, name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.seconds = seconds


def within(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread of its own and return its result, or raise what it raises.

    Raises:
        DeadlineError: it still runs after ``seconds``. It is ended, at the latest where it next runs Python.

    Example:
        >>> within(5.0, max, 2, 3)
        3
    """
    got: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            got.append(function(*args))
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = TimedThread(run, seconds, "exercise")
    thread.start()
    try:
        thread.join(seconds)
    finally:
        for _ in range(_TIMES):
            if thread.is_alive():
                halt(thread.ident)
                thread.join(0.02)
    if got:
        return got[0]
    if failed and not isinstance(failed[0], Halt):
        raise failed[0]
    raise DeadlineError(
        f"It did not end within {round(seconds, 1):g} s. Is there a loop whose condition never changes?"
    )
