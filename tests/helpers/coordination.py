"""The coordinator as a job has it, for tests that look at what it tells the ranks."""

from __future__ import annotations

from typing import Any

from workbench.config import Settings
from workbench.core.messages import Decision, Event, Response
from workbench.runtime.faults.stall import StallInspector
from workbench.runtime.steady import stack
from workbench.runtime.steady.cache import CachingCoordinator, CoordinatorCache

Item = Response | int


def as_sent(decision: Decision) -> list[Item]:
    """What the ranks are sent: the id alone of a response that they know."""
    return [item.cache_id if isinstance(item, Response) and item.cached else item for item in decision.items]


def response_of(item: Item) -> Response:
    """A response that was sent in full."""
    assert isinstance(item, Response), f"{item} is an id"
    return item


class Coordinator:
    """The coordinator with all its wrappers; what it decides comes as a list of what the ranks are sent.

    Args:
        size: number of ranks.
        cache_capacity, grace_s, stall: as in :class:`workbench.config.Settings`; 0 turns the cache off.
        steady, eager: accelerations.
    """

    def __init__(
        self,
        size: int,
        cache_capacity: int = 1024,
        grace_s: float = 0.5,
        stall: StallInspector | None = None,
        steady: bool = True,
        eager: bool = True,
    ) -> None:
        stall = stall or StallInspector(0, 0)
        self.settings = Settings(
            cache_capacity=cache_capacity,
            failed_rank_grace_s=grace_s,
            stall_warning_s=stall.warning_s,
            stall_shutdown_s=stall.shutdown_s,
            steady_state=int(steady),
            eager_bytes=4096 * eager,
        )
        self.size, self.whole = size, stack.coordinator(size, self.settings)
        self.last = Decision()  # that was not empty

    @property
    def number(self) -> int:
        """Of the last decision."""
        return self.last.number

    def take(self, event: Event, now: float) -> list[Item]:
        """Account for one event; what the ranks are sent."""
        return self._sent(self.whole.take(event, now))

    def expire(self, now: float) -> list[Item]:
        """Time has passed."""
        return self._sent(self.whole.expire(now))

    def stalled(self, now: float) -> tuple[str, list[Item]]:
        """The stall inspector looks."""
        report, decision = self.whole.stalled(now)
        return report, self._sent(decision)

    def undecided(self, now: float) -> bool:
        """Must it be asked again?"""
        return self.whole.undecided(now)

    def waiting(self) -> dict[str, list[int]]:
        """Incomplete names, after all are counted, and the ranks that each one misses."""
        decision = self.whole._inner.settle(0.0)
        assert not decision, "what is counted late was complete before"
        return self.whole.waiting()

    def responses(self, items: list[Item]) -> list[Response]:
        """What is sent, in full."""
        return [self.cache.response(item) if isinstance(item, int) else item for item in items]

    @property
    def cache(self) -> CoordinatorCache:
        """Rank 0's."""
        layer: Any = self.whole
        while not isinstance(layer, CachingCoordinator):
            layer = layer._inner
        return layer._cache

    @property
    def over(self) -> bool:
        """Has the job ended?"""
        return self.whole.over

    def _sent(self, decision: Decision) -> list[Item]:
        if decision:
            self.last = decision
        return as_sent(decision)
