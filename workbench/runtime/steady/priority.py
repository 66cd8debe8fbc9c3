"""Priorities: what is needed sooner overtakes what is needed later, on its way to the data plane.

A backward pass finishes the last layer's gradients first, and the next forward pass needs the first layer's first. A
response with a priority below zero is therefore not sent to the ranks at once. It waits in a queue on rank 0, from
which only so many bytes at a time are on their way; what has the highest priority is taken out next. (Jayarajan et al.
2019, arXiv:1905.03960, for tensors in pieces; Peng et al. 2019, SOSP, for bytes on their way, there called credit.)

All ranks still do what rank 0 has decided, in the order in which it says so; rank 0 says it later, that is all.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from workbench.core.fusion import nbytes
from workbench.core.messages import Decision, Done, Event, Left, Response, Values
from workbench.core.verbs import verb
from workbench.runtime.coordinators import Coordinator, Wrapper


class PriorityCoordinator(Wrapper):
    """Holds back what has a priority, while as much as is allowed is on its way.

    Args:
        inner: decides.
        members: the ranks of each process set.
        on_their_way_bytes: as long as fewer bytes with a priority are on their way, the next are sent.

    Example:
        >>> from workbench.core.coordinator import CountingCoordinator
        >>> from workbench.core.messages import Announce, Kind, Request
        >>> counting = CountingCoordinator(size=1)
        >>> coordinator = PriorityCoordinator(counting, counting.members, on_their_way_bytes=1)
        >>> def says(event):
        ...     return [response.name for response in coordinator.take(event, now=0.0).items]
        >>> def announce(name, priority):
        ...     return Announce(0, (Request(name, Kind.ALLREDUCE, "float32", (10,), priority=priority),))
        >>> says(announce("last", -9)), says(announce("middle", -5)), says(announce("first", -1))
        (['last'], [], [])
        >>> says(Done(0)), says(Done(0))
        (['first'], ['middle'])
    """

    def __init__(self, inner: Coordinator, members: Mapping[int, tuple[int, ...]], on_their_way_bytes: int) -> None:
        super().__init__(inner)
        self._members, self._limit, self._holds_back = members, on_their_way_bytes, True
        self._queue: list[tuple[int, int, Response]] = []  # lowest first: minus the priority, and who came first
        self._numbers = count()
        self._on_their_way: deque[int] = deque()  # bytes of each, in the order in which the ranks do them

    def take(self, event: Event, now: float) -> Decision:
        if isinstance(event, Done):
            if self._on_their_way:
                self._on_their_way.popleft()
            return self._decide(self._next())
        if isinstance(event, Left):  # it may be rank 0, which then says no more what is done
            self._holds_back = False
            return self._decide(self._next()) + super().take(event, now)
        return super().take(event, now)

    def decide(self, items: Sequence[Response | int], results: Values | None = None) -> Decision:
        return self.after(self._inner.decide(items, results))

    def after(self, decision: Decision) -> Decision:
        """The decision without what has to wait, and with what may go now."""
        if not self._queue and not any(isinstance(item, Response) and item.priority for item in decision.items):
            return decision
        items: list[Response | int] = []
        if any(isinstance(item, Response) and _comes_last(item) for item in decision.items):
            while self._queue:  # in full: who decides without looking at announcements knows no ids
                items.append(replace(self._pop(), cached=False, cache_id=None))
        results: Values = {}
        for i, item in enumerate(decision.items):
            if isinstance(item, Response) and item.priority:
                if 0 not in self._members.get(item.process_set, ()):
                    item = replace(item, priority=0)  # rank 0 does not do it, so it could not say when it is done
                elif item.priority < 0 and i not in decision.results:
                    heapq.heappush(self._queue, (-item.priority, next(self._numbers), item))
                    continue
                else:
                    self._on_their_way.append(0)  # the ranks have its result already, or it overtakes all
            if i in decision.results:
                results[len(items)] = decision.results[i]
            items.append(item)
        return Decision(decision.number, items + self._next(), results, decision.evicted)

    def _next(self) -> list[Response | int]:
        """What may go now, in order."""
        found: list[Response | int] = []
        while self._queue and (sum(self._on_their_way) < self._limit or not self._holds_back):
            found.append(self._pop())
        return found

    def _pop(self) -> Response:
        response = heapq.heappop(self._queue)[2]
        self._on_their_way.append(nbytes(response))
        return response

    def _decide(self, items: list[Response | int]) -> Decision:
        return self._inner.decide(items) if items else Decision()


def _comes_last(response: Response) -> bool:
    """Must all that was complete before be done before it? A job that breaks off does nothing more."""
    return not verb(response.kind).moves and not response.error
