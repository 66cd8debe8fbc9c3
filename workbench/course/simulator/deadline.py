"""A learner's function ends, whatever it does: a loop that never ends is broken off from outside."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.errors import DeadlineError

MOST_TIMES = 10
"""So many times as long as it may run a function has by the clock, where a machine is busy."""
_TIMES = 25  # a bare except may catch it
_LOOK_S = 0.25
_THREADS = Path("/proc/self/task")
Scheduled = dict[str, tuple[float, float]]

LOOP = "Is there a loop whose condition never changes?"


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


def scheduled() -> Scheduled:
    """For how long each thread of this process ran, and was ready without a core; nothing where nobody counts that."""
    found = {}
    for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():
        with suppress(OSError, ValueError):  # it has just ended, or the system keeps no account
            ran, waited, _ = (thread / "schedstat").read_text().split()
            found[thread.name] = int(ran) / 1e9, int(waited) / 1e9
    return found


class Patience:
    """So many seconds for a learner's function, without the time in which other programs had the cores.

    Args:
        seconds: how many. By the clock it is at most :data:`MOST_TIMES` as many.
        now: a clock, in seconds.
        threads: see :func:`scheduled`.
    """

    def __init__(
        self,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
        threads: Callable[[], Scheduled] = scheduled,
    ) -> None:
        self.seconds, self._now, self._threads = seconds, now, threads
        self._begun = self._last = now()
        self._before, self._counted = threads(), 0.0
        self._modules = set(sys.modules)

    def left(self) -> float:
        """How long it may still take."""
        now, after = self._now(), self._threads()
        took_s = now - self._last
        before = [self._before.get(thread, (0.0, 0.0)) for thread in after]
        both = list(zip(after.values(), before, strict=True))
        ran_s, waited_s = (sum(new[i] - old[i] for new, old in both) for i in (0, 1))
        # Threads that wait at the same time count once: all of them together wanted more than the time there was.
        starved_s = waited_s * min(1.0, took_s / max(ran_s + waited_s, 1e-9))
        self._counted += max(0.0, took_s - starved_s)
        self._last, self._before = now, after
        return min(self.seconds - self._counted, MOST_TIMES * self.seconds - (now - self._begun))

    def wait(self, done: Callable[[float], bool]) -> bool:
        """Wait until ``done(seconds)``, which itself waits so long at most, is true; False if it takes too long."""
        while (left := self.left()) > 0:
            if done(min(left, _LOOK_S)):
                return True
        return done(0.0)

    def late(self, why: str) -> str:
        """That it did not end, with the machine's state.

        Args:
            why: what may be the cause if the machine is not.
        """
        clock_s = self._last - self._begun
        if clock_s < 1.5 * self.seconds:
            return f"did not end within {round(self.seconds, 1):g} s. {why}"
        ran = f"did not end within {clock_s:.0f} s, in which this busy machine let it run for {self._counted:.0f} s"
        return f"{ran}. {why if self._counted >= self.seconds else 'End other programs, or check again later.'}"

    def forget_unfinished(self) -> None:
        """Forget parts of packages whose import was broken off since the beginning: the next import begins anew.

        Python forgets the package itself, and keeps those of its modules that were complete.
        """
        for name in sorted(sys.modules.keys() - self._modules):
            parents = [name[:end] for end, letter in enumerate(name) if letter == "."]
            if not all(parent in sys.modules for parent in parents):
                del sys.modules[name]


def within(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread of its own and return its result, or raise what it raises.

    Raises:
        DeadlineError: it still runs after ``seconds``, see :class:`Patience`. It is ended, at the latest where it next
            runs Python.

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

    def ended(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    thread, patience = threading.Thread(target=run, name="exercise", daemon=True), Patience(seconds)
    thread.start()
    try:
        patience.wait(ended)
    finally:
        for _ in range(_TIMES):
            if thread.is_alive():
                halt(thread.ident)
                thread.join(0.02)
        if not got:
            patience.forget_unfinished()
    if got:
        return got[0]
    if failed and not isinstance(failed[0], Halt):
        raise failed[0]
    raise DeadlineError(f"It {patience.late(LOOP)}")
