"""Where workers may run: hosts with slots, which come and go, and rest for a while after a failure. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_FALSE_STARTS = 3
"""So many workers of a host in a row may end before they have belonged to an epoch; then the host is given up."""
_REMEMBERED_S = 300.0  # a failure that is longer ago does not make the next rest longer


@dataclass
class Host:
    """One host.

    Args:
        slots: how many workers it takes.
        workers: by slot, who runs there.
        resting_until: it takes no new worker before.
        failures: of its workers, each within :data:`_REMEMBERED_S` after the one before.
        failed_at: the last one's time.
        false_starts: how many of them in a row belonged to no epoch.
    """

    slots: int
    workers: dict[int, int] = field(default_factory=dict)
    resting_until: float = 0.0
    failures: int = 0
    failed_at: float = float("-inf")
    false_starts: int = 0

    @property
    def given_up(self) -> bool:
        return self.false_starts >= MOST_FALSE_STARTS


class Slots:
    """All hosts of an elastic job.

    Args:
        most: so many workers at most; 0: as many as there are slots.
        rest_s: the shortest and the longest rest of a host after a failure; it doubles with each failure.

    Example:
        >>> slots = Slots(most=3, rest_s=(1.0, 8.0))
        >>> slots.found({"a": 2, "b": 2})
        []
        >>> [slots.take(each, host, slot) for each, (host, slot) in enumerate(slots.free(now=0.0))]
        [None, None, None]
        >>> slots.failed(worker=1, belonged=True, now=5.0)
        'a'
        >>> slots.free(now=5.5), slots.free(now=6.0)
        ([('b', 1)], [('a', 1)])
        >>> slots.found({"b": 2})
        [0]
    """

    def __init__(self, most: int = 0, rest_s: tuple[float, float] = (1.0, 60.0)) -> None:
        self._most, self._rest_s = most, rest_s
        self.hosts: dict[str, Host] = {}
        self._where: dict[int, tuple[str, int]] = {}

    @property
    def total(self) -> int:
        """How many slots there are, free or not."""
        return sum(host.slots for host in self.hosts.values())

    def before(self, name: str) -> int:
        """How many slots the hosts before this one have."""
        return sum(host.slots for host in list(self.hosts.values())[: list(self.hosts).index(name)])

    def found(self, slots: Mapping[str, int]) -> list[int]:
        """These hosts are there now, in this order.

        Returns:
            Workers whose slot is there no more.
        """
        for name, host in self.hosts.items():
            host.slots = slots.get(name, 0)
        for name in slots:
            self.hosts.setdefault(name, Host(slots[name]))
        return [worker for host in self.hosts.values() for slot, worker in host.workers.items() if slot >= host.slots]

    def free(self, now: float) -> list[tuple[str, int]]:
        """Host and slot of each worker that should be started now."""
        found = [
            (name, slot)
            for name, host in self.hosts.items()
            if now >= host.resting_until and not host.given_up
            for slot in range(host.slots)
            if slot not in host.workers
        ]
        # Who has no slot any more trains until others have come in its place.
        taken = sum(slot < self.hosts[name].slots for name, slot in self._where.values())
        return found[: max(0, self._most - taken)] if self._most else found

    def take(self, worker: int, host: str, slot: int) -> None:
        self.hosts[host].workers[slot] = worker
        self._where[worker] = host, slot

    def where(self, worker: int) -> tuple[str, int]:
        return self._where[worker]

    def left(self, worker: int) -> None:
        """A worker has ended without a failure; nothing if it has left before."""
        if worker in self._where:
            host, slot = self._where.pop(worker)
            del self.hosts[host].workers[slot]

    def failed(self, worker: int, belonged: bool, now: float) -> str:
        """A worker was lost; its host rests.

        Args:
            worker: who.
            belonged: was it in an epoch?
            now: the time.

        Returns:
            The host; "" if the worker has left before.
        """
        if worker not in self._where:
            return ""
        name, _ = self._where[worker]
        self.left(worker)
        host = self.hosts[name]
        host.failures = host.failures + 1 if now - host.failed_at < _REMEMBERED_S else 1
        host.failed_at = now
        host.false_starts = 0 if belonged else host.false_starts + 1
        shortest, longest = self._rest_s
        host.resting_until = now + min(longest, shortest * 2.0 ** min(host.failures - 1, 60))
        return name

    def may_start(self) -> bool:
        """Is there a host on which something may be started, now or later?"""
        return any(host.slots and not host.given_up for host in self.hosts.values())
