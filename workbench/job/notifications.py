"""News of hosts, from a launcher to who trains. Framework-free; :mod:`workbench.elastic` listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Listener(Protocol):
    """Who wants to know of new and lost hosts: a :class:`workbench.elastic.State`."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Called from any thread."""


class Notifications:
    """Hands what a launcher finds out about hosts to the states in training.

    Example:
        >>> class Printer:
        ...     def on_hosts_updated(self, timestamp, update_res):
        ...         print(timestamp, update_res)
        >>> notifications = Notifications()
        >>> with notifications.listening(Printer()):
        ...     notifications.hosts_updated(1.0, 1)
        1.0 1
    """

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """``listener`` hears of changes within the block."""
        self._listeners += (listener,)
        try:
            yield
        finally:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

    def hosts_updated(self, timestamp: float, update_res: int) -> None:
        """For the launcher: tell all listeners; from any thread. See :meth:`Listener.on_hosts_updated`."""
        for listener in self._listeners:
            listener.on_hosts_updated(timestamp, update_res)


NOTIFICATIONS = Notifications()
"""Passes news of hosts from the launcher to the running training function. One per process."""
