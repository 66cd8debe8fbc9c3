"""Which thread runs a loop: its own thread, or for a moment a thread that waits for the loop's result.

To hand work to a sleeping thread and to get the answer takes two wake-ups, some 30 µs each. A thread that would only
wait can do the work itself. So the loop's thread pauses while such threads follow each other quickly.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

REST_S = 0.05
"""So long after the last such thread the loop's own thread goes on."""
_LET_IN_S = 1e-4


class Turn:
    """Who may run a loop. Its own thread has the turn at first.

    Attributes:
        resting: the loop's thread has given the turn away.

    Example:
        >>> turn = Turn()
        >>> turn.take()  # the loop's own thread has it, until it rests
        False
    """

    def __init__(self) -> None:
        self._lock, self._bell = threading.Lock(), threading.Lock()
        self._lock.acquire()
        self._bell.acquire()
        self.resting, self._requested_at = False, float("-inf")
        self._looks_at = float("inf")  # the loop's thread, whether it is still not needed

    def park(self, idle: Callable[[], bool]) -> None:
        """For the loop's thread: let others run the loop, if one wanted to and as long as they do.

        Args:
            idle: is there nothing that they do not know of?
        """
        if not self._recent() or not idle():
            return
        self.resting = True
        if idle():  # still: who submits from here on rings, or takes the turn
            self._lock.release()
            self._looks_at = time.monotonic() + REST_S
            while not self._bell.acquire(timeout=REST_S):
                if not self._lock.locked() and not (self._recent() and idle()):
                    break
                self._looks_at = time.monotonic() + REST_S
            self._looks_at = float("inf")
            self._lock.acquire()
        self.resting = False
        self._bell.acquire(blocking=False)  # rung once more meanwhile

    def notify(self) -> None:
        """There is something to do: the loop's thread ends its rest."""
        if self.resting:
            with contextlib.suppress(RuntimeError):  # another thread has rung
                self._bell.release()

    def request(self) -> None:
        """A thread is about to wait: it could run the loop."""
        self._requested_at = time.monotonic()

    def take(self) -> bool:
        """Take the turn, if it can be had at once."""
        return self.resting and self._lock.acquire(blocking=False)

    def give(self) -> None:
        """Give the turn back.

        A thread that wants to run gets Python's global lock only from one that waits or computes for long: small numpy
        calls give it away too briefly, and wake that thread in vain each time. So this one sleeps a moment for it.
        """
        self._requested_at = now = time.monotonic()
        self._lock.release()
        if now > self._looks_at:
            time.sleep(_LET_IN_S)

    def _recent(self) -> bool:
        return time.monotonic() - self._requested_at < REST_S
