"""Batching: announcements are held back for a moment, so that neighbours are announced, and reduced, together.

``fusion_window_s`` 0 turns it off.
"""

from __future__ import annotations

from workbench.core.messages import Event
from workbench.core.pending import Entry
from workbench.core.protocols import AtOnce

_MOST_WINDOWS = 5  # however fast tensors follow each other, the first is held back for one window more at most


class Window(AtOnce):
    """Holds back until somebody waits for a part of it, an event follows, or nothing has come for ``window_s``.

    See :class:`workbench.core.protocols.Batching`.

    Example:
        >>> from workbench.core.handle import Handle
        >>> from workbench.core.messages import Kind, Request
        >>> window = Window(window_s=0.001)
        >>> entry = Entry(Request("x", Kind.BARRIER), None, None, Handle("x"))
        >>> window.add([entry], now=0.0), window.add([], now=0.0005), window.add([], now=0.002)
        (True, True, False)
        >>> window.take() == [[entry]]
        True
    """

    def __init__(self, window_s: float) -> None:
        super().__init__()
        self.window_s = window_s
        self._since = self._until = 0.0

    def add(self, fresh: list[Entry | Event], now: float) -> bool:
        """Take new entries and events in; True if more may come."""
        if fresh:
            self._since = self._since if self.held else now
            self._until = min(now, self._since + _MOST_WINDOWS * self.window_s) + self.window_s
            self.held += fresh
            if any(isinstance(each, Event) for each in fresh):
                self.flush_now = True
        self.open = bool(self.held) and not self.flush_now and now < self._until
        return self.open
