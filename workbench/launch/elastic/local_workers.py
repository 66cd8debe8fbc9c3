"""What an elastic job needs of its workers, and those on this machine alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from workbench.launch.elastic.silence import ReportsSilence
from workbench.launch.ranks.events import Signals
from workbench.launch.start.hosts import is_here
from workbench.launch.start.local_ranks import LocalRanks, Ranks
from workbench.launch.start.starters import JobSpec, Placement


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
