"""Announcements are held back for a moment, so that neighbours are announced, and travel, together."""

from __future__ import annotations

from workbench.runtime.pending import Entry

_MOST_WINDOWS = 5  # however fast tensors follow each other, the first is not held back for longer


class Window:
    """What is held back: until somebody waits for a part of it, or none has come for ``window_s``.

    Attributes:
        held: not announced yet.
        hurry: somebody waits; set by any thread.
        open: more may come, and the engine looks again by itself.

    Example:
        >>> window = Window(window_s=0.001)
        >>> window.add(["an entry"], now=0.0), window.add([], now=0.0005), window.add([], now=0.002)
        (True, True, False)
        >>> window.take()
        ['an entry']
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.held: list[Entry] = []
        self.hurry = self.open = False
        self._since = self._until = 0.0

    def add(self, fresh: list[Entry], now: float) -> bool:
        """Take new entries in; True if more may come."""
        if fresh:
            self._since = self._since if self.held else now
            self._until = min(now, self._since + _MOST_WINDOWS * self.window_s) + self.window_s
            self.held += fresh
        self.open = bool(self.held) and not self.hurry and now < self._until
        return self.open

    def take(self) -> list[Entry]:
        """All of it; it is announced now."""
        held, self.held, self.hurry = self.held, [], False
        return held
