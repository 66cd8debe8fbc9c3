"""Which thread does the engine's work, and what a waiting thread does meanwhile: the null implementations.

Here the engine's own thread does the work, and a waiting thread only waits. ``runtime/steady/caller_runs.py`` lets the
waiting thread do it; ``runtime/faults/blocked_threads.py`` finds out which thread waits for which.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from typing import Any, Protocol


class Owner:
    """Finishes handles; this one does not."""

    def runs_here(self) -> bool:
        """Is this the thread that finishes handles? It must never wait for one."""
        return False

    def awaited(self, handle: Any, limit_s: float) -> None:
        """Somebody waits: announce it now. It may be finished on the calling thread, at most ``limit_s`` later."""

    def long_wait(self, handle: Any, waiter: threading.Lock, timeout_s: float) -> bool:
        """Wait until the lock is free or ``timeout_s`` (-1: no limit) has passed. False if it is not."""
        return waiter.acquire(timeout=timeout_s)


class Waits:
    """Knows which threads submit and wait; this one does not."""

    def submits(self, engine: int | None = None) -> None:
        """This thread submits tensors."""

    def long_wait(self, request: Any, waiter: threading.Lock, timeout_s: float) -> bool:
        return waiter.acquire(timeout=timeout_s)

    def look(self, now: float) -> None:
        """Called by the engine from time to time."""


class Served(Protocol):
    """What an :class:`OwnThread` needs of the engine."""

    waits: Waits

    @property
    def ident(self) -> int | None: ...

    def one_round(self, longest_s: float, spin_s: float | None) -> None:
        """Announce what there is, wait for messages for so long at most, obey."""

    def settled(self) -> bool: ...

    def flush(self) -> bool:
        """Announce without delay what has not been announced; is there anything?"""


class OwnThread(Owner):
    """The engine's own thread does its work.

    Args:
        wake: ends the engine's wait for messages.

    Attributes:
        engine: whose work it is; set by the engine.
    """

    engine: Served

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def go_on(self) -> None:
        """On the engine's thread: a round."""
        self.engine.one_round(inf, None)

    def wake(self) -> None:
        self._wake()

    def will_wait(self) -> None:
        """As :meth:`wake`, by a thread that is about to wait for it."""
        self._wake()

    def runs_here(self) -> bool:
        return threading.get_ident() == self.engine.ident

    def awaited(self, handle: Any, limit_s: float) -> None:
        if self.engine.flush():
            self._wake()

    def long_wait(self, handle: Any, waiter: threading.Lock, timeout_s: float) -> bool:
        return self.engine.waits.long_wait(handle.request, waiter, timeout_s)
