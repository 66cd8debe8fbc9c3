"""The steady state: ranks announce the same known names in the same order, step after step.

Then names need not be counted one by one. Each rank's announcements make a sequence of cache ids, and what all
sequences begin with is complete. Whatever does not fit (another order, a new name, an event of another kind) is
counted; nothing is lost by that but time. ``steady_state`` 0 turns it off; it needs the response cache.
"""

from __future__ import annotations

from collections.abc import Callable

from workbench.core.messages import Announce, Decision, Done, Event, Values
from workbench.runtime.coordinators import Coordinator, Wrapper
from workbench.runtime.steady.cache import CoordinatorCache
from workbench.runtime.steady.eager import result_of


class Sequences:
    """What each rank has announced and not all others have, as cache ids in the order of announcement.

    Args:
        size: number of ranks.
        self_contained: may these begin without further ones? Not a part of a group.

    Example:
        >>> sequences = Sequences(size=2)
        >>> sequences.add(0, (7, 8, 9)), sequences.add(1, (7, 8)), sequences.add(1, (9,))
        ([], [7, 8], [9])
        >>> sequences.add(0, (7, 8)), sequences.add(1, (8,))
        ([], None)
        >>> sequences.take()
        {0: [7, 8], 1: [8]}
    """

    def __init__(self, size: int, self_contained: Callable[[list[int]], bool] = lambda ids: True) -> None:
        self._self_contained = self_contained
        self._ahead: dict[int, list[int]] = {rank: [] for rank in range(size)}
        self._silent = size  # how many of them are empty: while there is one, nothing can be complete
        self.values: dict[tuple[int, int], bytes] = {}
        """By (rank, id), where they came with the announcement."""

    def add(self, rank: int, ids: tuple[int, ...], values: dict[int, bytes] | None = None) -> list[int] | None:
        """A rank's next ids; return those that are complete now, or None if the ranks' orders or groups differ."""
        own = self._ahead[rank]
        self._silent -= bool(ids and not own)
        own += ids
        for index, value in (values or {}).items():
            self.values[rank, ids[index]] = value
        if self._silent:
            return []
        shortest = min(map(len, self._ahead.values()))
        first = own[:shortest]
        if any(one[:shortest] != first for one in self._ahead.values()) or not self._self_contained(first):
            return None
        for one in self._ahead.values():
            del one[:shortest]
        self._silent = sum(not one for one in self._ahead.values())
        return first

    def __bool__(self) -> bool:
        return self._silent < len(self._ahead)

    def validate(self) -> None:
        empty = sum(not ids for ids in self._ahead.values())
        assert self._silent == empty, f"{self._silent} ranks count as silent, and {empty} are: {self._ahead}"
        assert empty, f"All ranks have announced more, and nothing has begun: {self._ahead}"
        waiting = {(rank, cache_id) for rank, ids in self._ahead.items() for cache_id in ids}
        assert self.values.keys() <= waiting, (
            f"Values are kept for ids that do not wait: {self.values.keys() - waiting}"
        )

    def take(self) -> dict[int, list[int]]:
        """All of it, by rank: now it is to be counted one by one. The values stay."""
        ahead, self._ahead = self._ahead, {rank: [] for rank in self._ahead}
        self._silent = len(ahead)
        return ahead


class SteadyCoordinator(Wrapper):
    """Completes whole sequences of known names at once.

    Args:
        inner: counts.
        cache: knows the ids.
        size: number of ranks.
        calm: may an announcement, made after reading decision ``seen``, stand for what its ids say? Not after a
            failure that it crossed.
    """

    def __init__(
        self, inner: Coordinator, cache: CoordinatorCache, size: int, calm: Callable[[int], bool] = lambda seen: True
    ) -> None:
        super().__init__(inner)
        self._cache, self._size, self._calm = cache, size, calm
        self._sequences = Sequences(size, cache.self_contained)
        self._seen = [0] * size
        self._began = 0.0  # when the first name of the step was announced

    def take(self, event: Event, now: float) -> Decision:
        if isinstance(event, Done):
            return self._inner.take(event, now)
        if not isinstance(event, Announce):
            return self.settle(now) + self._inner.take(event, now)
        if not event.items:
            return self._inner.take(event, now)
        if self._inner.waiting or not self._cache.steady.issuperset(event.items) or not self._calm(event.seen):
            return self.settle(now) + self._inner.take(event, now)
        return self._advance(event, now)

    def settle(self, now: float) -> Decision:
        """Back to counting; what is complete by that."""
        decision = self._inner.settle(now)
        if not self._sequences:
            return decision
        values, self._sequences.values = self._sequences.values, {}
        for rank, ids in self._sequences.take().items():
            # An id occurs once in a rank's sequence: its name is not free before.
            known: Values = {i: values[rank, one] for i, one in enumerate(ids) if (rank, one) in values}
            event = Announce(rank, tuple(ids), self._seen[rank], known)
            decision += self._inner.take(event, self._began)
        return decision

    def validate(self) -> None:
        super().validate()
        assert not (self._sequences and self._inner.waiting), "Names are counted, and others are in sequences."
        self._sequences.validate()

    @property
    def busy(self) -> bool:
        return bool(self._sequences) or self._inner.busy

    def _advance(self, event: Announce, now: float) -> Decision:
        ids: tuple[int, ...] = event.items  # type: ignore[assignment]  # all are in the set of ids
        self._cache.seen(event.rank, event.seen)
        self._seen[event.rank] = max(self._seen[event.rank], event.seen)
        fresh = not self._sequences
        complete = self._sequences.add(event.rank, ids, event.values)
        if fresh or complete:  # what is left may be a little older; too young an age does no harm
            self._began = now
        if complete is None:
            return self.settle(now)
        if not complete:
            return Decision()
        responses = [self._cache.response(cache_id) for cache_id in complete]
        self._cache.touch(responses)
        results: Values = {}
        if took := self._sequences.values:
            for i, (cache_id, response) in enumerate(zip(complete, responses, strict=True)):
                values = {rank: took.pop((rank, cache_id)) for rank in range(self._size) if (rank, cache_id) in took}
                if not values:
                    continue
                requests = response.requests
                absent = [rank for rank, each in requests.items() if each.absent]
                if result := result_of(response, values, sorted(requests), self._size, absent):
                    results[i] = result
        return self._inner.decide(responses, results)
