"""The steady state: ranks announce the same known names in the same order, step after step.

Then names need not be counted one by one. Each rank's announcements make a sequence of cache ids, and what all
sequences begin with is complete. Whatever does not fit (another order, a new name, an event of another kind) is
counted; nothing is lost by that but time. ``steady_state`` 0 turns it off; it needs the response cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from workbench.core.messages import Announce, Decision, Done, Event, Response
from workbench.runtime.coordinators import Coordinator, Wrapper
from workbench.runtime.steady.cache import CoordinatorCache
from workbench.runtime.steady.eager import answer


class Record(NamedTuple):
    """Ids that a rank has announced at once, and values of small tensors by their place among the ids."""

    ids: tuple[int, ...]
    values: Mapping[int, bytes | memoryview]


class Unit(NamedTuple):
    """Ids that all ranks have announced, and each rank's values."""

    ids: tuple[int, ...]
    values: list[Mapping[int, bytes | memoryview]]

    def values_by_rank(self) -> Iterator[tuple[int, dict[int, bytes | memoryview]]]:
        """For each id of which some rank has sent a value, by its place: the values."""
        for i in sorted({i for each in self.values for i in each}):
            yield i, {rank: each[i] for rank, each in enumerate(self.values) if i in each}


class Sequences:
    """What each rank has announced and not all others have, in the order of announcement.

    Each place where some rank's record ends is the end of a *unit*, which is complete as soon as all have announced it.
    So the units depend on the records alone, and not on when somebody looks.

    Args:
        size: number of ranks.
        joins: one record of each rank becomes all that it has announced; then a unit is all that is complete.

    Example:
        >>> sequences = Sequences(size=2)
        >>> sequences.add(0, Record((7, 8, 9), {})); sequences.complete()
        0
        >>> sequences.add(1, Record((7, 8), {})); sequences.pop(sequences.complete()).ids
        (7, 8)
        >>> sequences.add(1, Record((8,), {})); print(sequences.complete())
        None
        >>> [(rank, record.ids) for rank, record in sequences.take()]
        [(0, (9,)), (1, (8,))]
    """

    def __init__(self, size: int, joins: bool = False) -> None:
        self._joins = joins
        self._ahead = [deque[Record]() for _ in range(size)]
        self._silent = size  # how many of them are empty: while there is one, nothing can be complete

    def add(self, rank: int, record: Record) -> None:
        """A rank's next ids."""
        self._silent -= not self._ahead[rank]
        if self._joins and self._ahead[rank]:
            ids, values = self._ahead[rank].pop()
            more = {len(ids) + i: value for i, value in record.values.items()}
            record = Record(ids + record.ids, {**values, **more} if more else values)
        self._ahead[rank].append(record)

    def complete(self) -> int | None:
        """How many ids the next unit has; 0 while it is not complete, None if the ranks' orders differ."""
        if self._silent:
            return 0
        heads = [records[0].ids for records in self._ahead]
        n = min(map(len, heads))
        return n if all(ids is heads[0] or ids[:n] == heads[0][:n] for ids in heads) else None

    def first(self, rank: int) -> Record:
        """A rank's first record."""
        return self._ahead[rank][0]

    def pop(self, n: int) -> Unit:
        """The next unit, of so many ids."""
        values, self._silent = [], 0
        for records in self._ahead:
            record = records.popleft()
            if len(record.ids) > n:
                rest = {i - n: value for i, value in record.values.items() if i >= n}
                records.appendleft(Record(record.ids[n:], rest))
                record = Record(record.ids[:n], {i: value for i, value in record.values.items() if i < n})
            values.append(record.values)
            self._silent += not records
        return Unit(record.ids, values)

    def __bool__(self) -> bool:
        return self._silent < len(self._ahead)

    def validate(self) -> None:
        empty = sum(not records for records in self._ahead)
        assert self._silent == empty, f"{self._silent} ranks count as silent, and {empty} are: {self._ahead}"
        assert empty, f"All ranks have announced more, and nothing has begun: {self._ahead}"

    def take(self) -> list[tuple[int, Record]]:
        """All of it, with whose it is: now it is to be counted one by one."""
        rest = [(rank, record) for rank, records in enumerate(self._ahead) for record in records]
        self._ahead, self._silent = [deque() for _ in self._ahead], len(self._ahead)
        return rest


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
        self._sequences = Sequences(size, joins=True)
        self._seen = [0] * size
        self._began = 0.0  # when the first name of the step was announced

    def take(self, event: Event, now: float) -> Decision:
        if isinstance(event, Done):
            return self._inner.take(event, now)
        if not isinstance(event, Announce):
            return self.settle(now) + self._inner.take(event, now)
        if not event.items:
            return self._inner.take(event, now)
        known = self._cache.steady.issuperset(event.items) and self._cache.self_contained(event.items)
        if self._inner.waiting or not known or not self._calm(event.seen):
            return self.settle(now) + self._inner.take(event, now)
        return self._advance(event, now)

    def settle(self, now: float) -> Decision:
        """Back to counting; what is complete by that."""
        decision = self._inner.settle(now)
        if not self._sequences:
            return decision
        for rank, record in self._sequences.take():
            values = {i: bytes(value) for i, value in record.values.items()}
            decision += self._inner.take(Announce(rank, record.ids, self._seen[rank], values), self._began)
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
        self._sequences.add(event.rank, Record(ids, event.values))
        responses, results = list[Response](), dict[int, bytes]()
        while n := self._sequences.complete():
            unit = self._sequences.pop(n)
            for i, values in unit.values_by_rank():
                if result := answer(self._cache.response(unit.ids[i]), values, self._size):
                    results[len(responses) + i] = result
            responses += [self._cache.response(cache_id) for cache_id in unit.ids]
        if fresh or responses:  # what is left may be a little older; too young an age does no harm
            self._began = now
        self._cache.touch(responses)
        decision = self._inner.decide(responses, results) if responses else Decision()
        return decision + self.settle(now) if n is None else decision
