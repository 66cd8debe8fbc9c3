"""Pauses between two polls of something that sends no notification."""

from __future__ import annotations

import time


class Backoff:
    """Pauses that double, until a deadline: a quick answer is seen at once, and a slow one costs little CPU.

    Args:
        timeout_s: seconds from now to the deadline.
        first_s, longest_s: the first pause, and what no pause exceeds; equal for a steady pace.

    Example:
        >>> backoff = Backoff(timeout_s=0.01, first_s=0.001)
        >>> while backoff.pause():
        ...     pass
        >>> backoff.over()
        True
    """

    def __init__(self, timeout_s: float, first_s: float = 1e-4, longest_s: float = 0.05) -> None:
        self._until, self._next_s, self._longest_s = time.monotonic() + timeout_s, first_s, longest_s

    def over(self) -> bool:
        return time.monotonic() > self._until

    def pause(self) -> bool:
        """Sleep; once the deadline has passed return False at once."""
        if self.over():
            return False
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._longest_s)
        return True
