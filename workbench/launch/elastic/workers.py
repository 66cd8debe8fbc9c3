"""What an elastic job needs of its workers: those on this machine alone, and whether each still lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from workbench.common.messages import Message
from workbench.launch.ranks.events import Signals
from workbench.launch.start.hosts import is_here
from workbench.launch.start.local_ranks import LocalRanks, Ranks
from workbench.launch.start.starters import JobSpec, Placement

_PING_S = 1.0  # between two questions


class ReportsSilence(Protocol):
    """Carries messages to workers."""

    def send(self, worker: int, message: Message) -> None: ...

    def silent_for(self, worker: int) -> float:
        """For how many seconds a worker has said nothing."""


class Silence:
    """Asks the workers that others wait for: one that was stopped, or hangs in the system, does not answer.

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


class Workers(Ranks, ReportsSilence, Protocol):
    """The workers of an elastic job. Numbers of ranks in events are workers'."""

    def takes(self, host: str) -> bool:
        """May workers be started on this host, which was found while the job runs?"""

    def start(self, worker: int, placement: Placement) -> None: ...


class LocalWorkers(LocalRanks):
    """See :class:`Workers`. Names of this machine are one host, which has the slots of all.

    Args:
        task: each worker's command and environment; ``n``: for so many the cores are shared out.
        signals: of this process; they come as events.
    """

    def __init__(self, task: JobSpec, signals: Signals) -> None:
        super().__init__(task, signals, elastic=True)

    def takes(self, host: str) -> bool:
        """Another machine could not reach the ranks that are here: they use addresses of this machine alone."""
        return is_here(host)

    def start(self, worker: int, placement: Placement) -> None:
        super().start(worker, replace(placement, slot=placement.index, beside=placement.total))
