"""The response cache: what was agreed on once is named by a number from then on.

A training step submits the same tensors again and again. After a name's first response, the coordinator gives it a
*cache id*; from then on a rank announces the id, and when all ranks have announced what the id stands for, the
response is the id as well. A steady step costs a few bytes per tensor. ``cache_capacity`` 0 turns it off.

Two things keep both ends in step.

1. A request that changed (another shape, another dtype) is announced in full; the coordinator takes the
   other ranks' ids back to their full requests, compares, and gives the name a new id.
2. Ids are never used twice. When the coordinator evicts one, a rank may have announced it a moment ago.
   So the entry is kept until every rank has confirmed (``Announce.seen``) that it read of the eviction.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace

from workbench.core import agreement
from workbench.core.coordinator import Respond
from workbench.core.messages import Announce, Decision, Key, Request, Response, Values
from workbench.core.pending import Entry
from workbench.core.protocols import Announcer
from workbench.core.verbs import VERBS
from workbench.runtime.coordinators import Coordinator, Wrapper


class CoordinatorCache:
    """Rank 0's side: id → response, with the requests of all ranks.

    Args:
        capacity: how many names have an id at a time.
        size: number of ranks.
        respond: as in :mod:`workbench.core.agreement`; asked where a rank's request has changed.
    """

    def __init__(self, capacity: int, size: int, respond: Respond = agreement.respond) -> None:
        self.capacity, self._respond = capacity, respond
        self._ids: OrderedDict[Key, int] = OrderedDict()  # least recently used first
        self._known: dict[int, Response] = {}
        self._next = 0
        self._seen = [0] * size
        self._evicted: list[int] = []
        self._evicted_until_seen: deque[tuple[int, list[int]]] = deque()
        self.steady: set[int] = set()
        """Current ids of all ranks together: what a steady step consists of."""
        self._groups: dict[int, tuple[str, int]] = {}  # those of them that start with others: their group, and its size

    def request(self, cache_id: int, rank: int) -> Request | None:
        """What ``rank`` means by ``cache_id``; None for an id that it was never given."""
        known = self._known.get(cache_id)
        return known.requests.get(rank) if known else None

    def expand(self, event: Announce) -> list[Request]:
        """What a rank announces, in full; unknown ids are skipped."""
        found = (self.request(item, event.rank) if isinstance(item, int) else item for item in event.items)
        return [request for request in found if request is not None]

    def response(self, cache_id: int) -> Response:
        return self._known[cache_id]

    def respond(self, requests: dict[int, Request]) -> Response:
        """The response to these requests: what is known, if none of them has changed."""
        known = self._known.get(self._ids.get(next(iter(requests.values())).key, 0))
        same = known is not None and len(known.requests) == len(requests)
        if known and same and all(known.requests.get(rank) is request for rank, request in requests.items()):
            return known
        return self._respond(requests)

    def current(self, cache_id: int) -> bool:
        """Is this still the id of its name? Else ranks forget it, or have forgotten it."""
        known = self._known.get(cache_id)
        return known is not None and self._ids.get(known.key) == cache_id

    def put(self, response: Response) -> Response:
        """Give a response a new id and return it with the id; an error or an unnamed tensor is returned as it is."""
        if response.error or response.joined or response.kind not in VERBS or ".noname." in response.name:
            return response
        if any(request.progress for request in response.requests.values()):  # in this step alone: the old id stays
            return response
        if response.key in self._ids:
            self._evict(self._ids.pop(response.key))
        elif len(self._ids) >= self.capacity:
            self._evict(self._ids.popitem(last=False)[1])
        self._next += 1
        if response.process_set == 0:
            self.steady.add(self._next)
            request = next(iter(response.requests.values()))  # the others agree about the group
            if request.group:
                self._groups[self._next] = request.group, request.group_size
        self._ids[response.key] = self._next
        self._known[self._next] = replace(response, cache_id=self._next, cached=True)
        return replace(response, cache_id=self._next, cached=False)

    def self_contained(self, items: Sequence[Request | int]) -> bool:
        """Is each group among these ids complete?"""
        if not self._groups:
            return True
        found = Counter(self._groups[each] for each in items if isinstance(each, int) and each in self._groups)
        return all(size == count for (_, size), count in found.items())

    def touch(self, responses: list[Response]) -> None:
        """These were used, in this order; their ids are current."""
        for response in responses:
            self._ids.move_to_end(response.key)

    def take_evicted(self, number: int) -> list[int]:
        """Ids that are void from decision ``number`` on."""
        evicted, self._evicted = self._evicted, []
        if evicted:
            self._evicted_until_seen.append((number, evicted))
        return evicted

    def seen(self, rank: int, number: int) -> None:
        """``rank`` has read all decisions up to ``number``."""
        self._seen[rank] = max(self._seen[rank], number)
        while self._evicted_until_seen and self._evicted_until_seen[0][0] <= min(self._seen):
            for cache_id in self._evicted_until_seen.popleft()[1]:
                del self._known[cache_id]

    def _evict(self, cache_id: int) -> None:
        self._evicted.append(cache_id)
        self.steady.discard(cache_id)
        self._groups.pop(cache_id, None)

    def validate(self) -> None:
        evicted = [ids for _, ids in self._evicted_until_seen]
        current, dying = set(self._ids.values()), {*self._evicted}.union(*evicted)
        assert len(current) == len(self._ids) <= self.capacity, f"One id of two names, or too many: {self._ids}"
        assert self._known.keys() == current | dying, f"Known: {self._known.keys()}, current: {current}, to go: {dying}"
        assert self.steady <= current, f"Ids of steady steps that are void: {self.steady - current}"
        assert self._groups.keys() <= self.steady, f"Groups of ids that are void: {self._groups.keys() - self.steady}"


class CachingCoordinator(Wrapper):
    """Understands ids, and answers with them.

    Args:
        inner: has the cache's ``respond``.
        cache: of all ranks.
    """

    def __init__(self, inner: Coordinator, cache: CoordinatorCache) -> None:
        super().__init__(inner)
        self._cache = cache

    def before(self, event: Announce) -> Announce:
        """Requests for ids. An unknown id is skipped, and the rest is kept."""
        self._cache.seen(event.rank, event.seen)
        items: list[Request | int] = []
        values: Values = {}
        for i, item in enumerate(event.items):
            request = self._cache.request(item, event.rank) if isinstance(item, int) else item
            if request is not None:
                if i in event.values:
                    values[len(items)] = event.values[i]
                items.append(request)
        return Announce(event.rank, tuple(items), event.seen, values)

    def validate(self) -> None:
        super().validate()
        self._cache.validate()

    def after(self, decision: Decision) -> Decision:
        """Ids for what the ranks know, new ids for the rest."""
        items: list[Response | int] = []
        for item in decision.items:
            if isinstance(item, Response):
                if item.cached and self._cache.current(item.cache_id or 0):
                    self._cache.touch([item])
                else:
                    item = self._cache.put(item)
            items.append(item)
        return Decision(decision.number, items, decision.results, self._cache.take_evicted(decision.number))


class CachingAnnouncer:
    """Every rank's side: request → id, and id → response; see :class:`workbench.core.protocols.Announcer`.

    Args:
        inner: sends and reads requests and responses in full.
        rank: this rank.

    Attributes:
        known: responses by their id.
    """

    def __init__(self, inner: Announcer, rank: int) -> None:
        self._inner, self._rank = inner, rank
        self._ids: dict[Key, tuple[Request, int]] = {}  # what was agreed on, and its id
        self.known: dict[int, Response] = {}
        self._asked: dict[Key, Request] = {}  # until a response comes in full
        self._last: tuple[tuple[Request | int, ...], tuple[Request | int, ...]] = (), ()  # requests, and their ids

    def announce(self, entries: list[Entry], seen: int) -> Announce:
        """Ids where there are any."""
        event = self._inner.announce(entries, seen)
        if event.items == self._last[0] and self._last[1]:  # as a moment ago; nothing was learnt since
            return Announce(event.rank, self._last[1], event.seen, event.values)
        items: list[Request | int] = []
        for item in event.items:
            if isinstance(item, Request):
                key = item.process_set, item.name
                self._asked[key] = item
                request, cache_id = self._ids.get(key, (None, item))
                items.append(cache_id if request is item or request == item else item)
            else:
                items.append(item)
        ids = tuple(items)
        self._last = event.items, ids if all(isinstance(each, int) for each in ids) else ()
        return Announce(event.rank, ids, event.seen, event.values)

    def known_id(self, request: Request) -> int | None:
        """The id of a request that was announced before, and is about to be announced again."""
        key = request.process_set, request.name
        known, cache_id = self._ids.get(key, (None, None))
        if known is not request and known != request:
            return None
        self._asked[key] = request
        return cache_id

    def read(self, decision: Decision) -> list[Response]:
        """Responses for ids; what got an id is remembered. Ids of others' process sets are unknown, and skipped."""
        items: list[Response | int] = []
        results: Values = {}
        for i, item in enumerate(decision.items):
            response = self._learn(item) if isinstance(item, Response) else self.known.get(item)
            if response is not None:
                if i in decision.results:
                    results[len(items)] = decision.results[i]
                items.append(response)
        self._forget(decision.evicted)
        return self._inner.read(Decision(decision.number, items, results))

    def _learn(self, response: Response) -> Response | None:
        if response.cached:  # on rank 0, which is not sent the id alone
            return response if response.cache_id in self.known else None
        self._last = (), ()
        asked = None if self._rank in response.joined else self._asked.pop(response.key, None)
        if response.cache_id is not None and asked is not None:
            self._ids[response.key] = asked, response.cache_id
            self.known[response.cache_id] = response
        return response

    def _forget(self, evicted: list[int]) -> None:
        for cache_id in evicted:
            self._last = (), ()
            known = self.known.pop(cache_id, None)
            if known is not None and self._ids.get(known.key, (None, None))[1] == cache_id:
                del self._ids[known.key]
