"""Who is waited for has to show that it lives: a worker that was stopped, or hangs in the system, does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from workbench.common.messages import Message

_PING_S = 1.0  # between two questions


class ReportsSilence(Protocol):
    """Carries messages to workers."""

    def send(self, worker: int, message: Message) -> None: ...

    def silent_for(self, worker: int) -> float:
        """For how many seconds a worker has said nothing."""


class Silence:
    """Asks the workers that others wait for.

    Args:
        contact: with them.
        limit_s: who says nothing for so long is overdue.
        overdue: called with each that is.
    """

    def __init__(self, contact: ReportsSilence, limit_s: float, overdue: Callable[[int], None]) -> None:
        self._contact, self._limit_s, self._overdue = contact, limit_s, overdue
        self._asked: dict[int, float] = {}  # since when
        self._next = 0.0

    def look(self, awaited: Iterable[int], now: float) -> None:
        """Ask them, once a second.

        Ranks that train have nothing to say, so the silence counts from the first question on.
        """
        if now < self._next:
            return
        self._next = now + _PING_S
        self._asked = {worker: self._asked.get(worker, now) for worker in awaited}
        for worker, since in self._asked.items():
            if min(self._contact.silent_for(worker), now - since) > self._limit_s:
                self._overdue(worker)
            self._contact.send(worker, Message("ping", {}))
