"""The response cache: what was negotiated once is named by a number from then on.

A training step submits the same tensors again and again. After a name's first negotiation the
coordinator gives it a *cache id* in the response; from then on a rank announces the id, and when all
ranks announced the same id, the response is the id as well. A steady step costs a few bytes per tensor.

Two things keep both ends in step.

1. A request that changed (another shape, another dtype) is announced in full; the coordinator takes the
   other ranks' ids back to their full requests, compares, and gives the name a new id.
2. Ids are never used twice. When the coordinator evicts one, a rank may have announced it a moment ago.
   So the entry is kept until every rank has confirmed (``Announce.seen``) that it read of the eviction.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from workbench.runtime.messages import Kind, Outgoing, Request, Response, Values
from workbench.runtime.pending import Entry

Find = Callable[[int, str], Entry | None]


@dataclass(frozen=True, slots=True)
class Remembered:
    """One negotiation: who asked for what, and the answer."""

    requests: dict[int, Request]
    response: Response


class CoordinatorCache:
    """Rank 0's side: id → requests of all ranks."""

    def __init__(self, capacity: int, size: int) -> None:
        self.capacity = capacity
        self._ids: OrderedDict[tuple[int, str], int] = OrderedDict()  # least recently used first
        self._known: dict[int, Remembered] = {}
        self._next = 0
        self._seen = [0] * size
        self._evicted: list[int] = []
        self._graveyard: deque[tuple[int, list[int]]] = deque()
        self.steady: set[int] = set()
        """Current ids of all ranks together, and of no group: what a steady step consists of."""

    def request(self, cache_id: int, rank: int) -> Request | None:
        """What ``rank`` means by ``cache_id``; None for an id that it was never given."""
        known = self._known.get(cache_id)
        return known.requests.get(rank) if known else None

    def response(self, cache_id: int) -> Response:
        """The response behind an id; for observers."""
        return self._known[cache_id].response

    def touch(self, cache_id: int) -> Response:
        """The response behind an id that all ranks announced; it is the most recently used one now."""
        if self.current(cache_id):
            self.touch_all([cache_id])
        return self._known[cache_id].response

    def current(self, cache_id: int) -> bool:
        """Is this still the id of its name? Else ranks forget it, or have forgotten it."""
        known = self._known.get(cache_id)
        return known is not None and self._ids.get((known.response.process_set, known.response.name)) == cache_id

    def put(self, requests: dict[int, Request], response: Response) -> int:
        """Remember a negotiation and return its new id, or -1 if it is not worth it."""
        if self.capacity == 0 or response.error or ".noname." in response.name:
            return -1
        key = (response.process_set, response.name)
        if key in self._ids:
            self._evict(self._ids.pop(key))
        elif len(self._ids) >= self.capacity:
            self._evict(self._ids.popitem(last=False)[1])
        self._next += 1
        if response.process_set == 0 and not any(request.group for request in requests.values()):
            self.steady.add(self._next)
        self._ids[key] = self._next
        self._known[self._next] = Remembered(requests, response)
        return self._next

    def _evict(self, cache_id: int) -> None:
        self._evicted.append(cache_id)
        self.steady.discard(cache_id)

    def known(self, cache_id: int) -> Remembered:
        """The negotiation behind an id."""
        return self._known[cache_id]

    def touch_all(self, cache_ids: list[int]) -> None:
        """These current ids were used, in this order."""
        for cache_id in cache_ids:
            response = self._known[cache_id].response
            self._ids.move_to_end((response.process_set, response.name))

    def take_evicted(self, number: int) -> list[int]:
        """Ids void from response message ``number`` on."""
        evicted, self._evicted = self._evicted, []
        if evicted:
            self._graveyard.append((number, evicted))
        return evicted

    def seen_by_all(self) -> int:
        """Number of the last message that every rank has read."""
        return min(self._seen)

    def seen(self, rank: int, number: int) -> None:
        """``rank`` has read all response messages up to ``number``."""
        self._seen[rank] = max(self._seen[rank], number)
        while self._graveyard and self._graveyard[0][0] <= min(self._seen):
            for cache_id in self._graveyard.popleft()[1]:
                del self._known[cache_id]


class RankCache:
    """Every rank's side: request → id, and id → response."""

    def __init__(self) -> None:
        self._ids: dict[Request, int] = {}
        self._known: dict[int, tuple[Request, Response]] = {}

    def shorten(self, request: Request) -> Request | int:
        """The id of a request that was negotiated before, or the request itself."""
        return self._ids.get(request, request)

    def read(self, items: list[Outgoing], evicted: list[int], results: Values, find: Find) -> list[Response]:
        """The responses of one message, in order; remember those that got an id, forget the ids that are void.

        Args:
            items: responses with their new ids, or ids.
            evicted: void from now on.
            results: that came with them, by index.
            find: this rank's entry by (process set, name); None if it takes no part.
        """
        responses: list[Response] = []
        for i, item in enumerate(items):
            if isinstance(item, int):
                if item not in self._known:
                    continue
                response = self._known[item][1]
            else:
                response, cache_id = item
                entry = find(response.process_set, response.name)
                if cache_id != -1 and entry is not None:
                    self.put(cache_id, entry.request, response)
            if response.kind is not Kind.STACKS:  # answered already, by whoever took the message
                responses.append(response.with_result(results[i]) if i in results else response)
        self.evict(evicted)
        return responses

    def put(self, cache_id: int, request: Request, response: Response) -> None:
        """Remember what rank 0 gave an id."""
        self._ids[request] = cache_id
        self._known[cache_id] = (request, response)

    def response(self, cache_id: int) -> Response | None:
        """The response behind an id; None if this rank took no part in it."""
        known = self._known.get(cache_id)
        return known[1] if known else None

    def evict(self, cache_ids: list[int]) -> None:
        """Forget ids that are void."""
        for cache_id in cache_ids:
            known = self._known.pop(cache_id, None)
            if known is not None and self._ids.get(known[0]) == cache_id:
                del self._ids[known[0]]
