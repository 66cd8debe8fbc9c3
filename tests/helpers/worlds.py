"""For the tests of the coordinator: ranks without threads or sockets, and two worlds in which the same happens."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from types import SimpleNamespace

from coordination import Coordinator

from workbench.core.messages import Announce, Decision, Event, Key, Kind, Request, Response, Values
from workbench.core.protocols import PlainAnnouncer
from workbench.runtime.control.codec import decode_decision, encode_decision
from workbench.runtime.faults.stall import StallInspector
from workbench.runtime.steady.cache import CachingAnnouncer

LONG_S = 100.0  # more than any grace or deadline here


def allreduce(name: str, length: int = 4, **fields: object) -> Request:
    """A request for the allreduce of some floats."""
    return Request(name, Kind.ALLREDUCE, "float32", (length,), **fields)


class World:
    """A coordinator and its ranks, which read its decisions and use its ids.

    Args:
        quick: are known names in one order completed at once? Else all of them are counted.

    Attributes:
        flying: by rank, what it has submitted and has no answer to.
        answers: by rank and name, how often it was answered.
        quick: how many names have been completed at once.
        results: of the last event, by name.
    """

    def __init__(self, size: int, capacity: int, quick: bool) -> None:
        coordinator = Coordinator(size, capacity, grace_s=1.0, stall=StallInspector(5.0, 50.0), steady=quick)
        self.coordinator, self.quick = coordinator.whole, 0
        self.results: dict[Key, bytes] = {}
        self.announcers = [CachingAnnouncer(PlainAnnouncer(rank), rank) for rank in range(size)]
        self.inboxes = [deque[Decision]() for _ in range(size)]
        self.seen = [0] * size
        self.flying: list[dict[Key, Request]] = [{} for _ in range(size)]
        self.answers: Counter[tuple[int, Key]] = Counter()
        if quick and capacity:
            advance = self.coordinator._inner._advance

            def counted(event: Announce, now: float) -> Decision:
                decision = advance(event, now)
                self.quick += len(decision.items)
                return decision

            self.coordinator._inner._advance = counted

    def announce(self, rank: int, requests: Sequence[Request], now: float, values: Values) -> list[Response]:
        """A rank announces something; what is answered by that."""
        self.flying[rank].update({request.key: request for request in requests})
        event = self.announcers[rank].announce([SimpleNamespace(request=each) for each in requests], self.seen[rank])
        return self.tell(Announce(rank, event.items, event.seen, values), now)

    def tell(self, event: Event, now: float) -> list[Response]:
        """Something happens; what is answered by that."""
        return self.send(self.coordinator.take(event, now))

    def send(self, decision: Decision) -> list[Response]:
        """What is decided goes to all ranks, as the server sends it."""
        self.results = {decision.items[i].key: result for i, result in decision.results.items()}
        if decision:
            for rank, inbox in enumerate(self.inboxes):
                inbox.append(decision if rank == 0 else decode_decision(encode_decision(decision)))
        return sorted(decision.items, key=lambda response: response.key)

    def read(self, rank: int) -> None:
        """A rank reads its next decision."""
        decision = self.inboxes[rank].popleft()
        self.seen[rank] = decision.number
        for response in self.announcers[rank].read(decision):
            if self.flying[rank].pop(response.key, None):
                self.answers[rank, response.key] += 1


class Twins:
    """Two worlds in which the same happens; only one of them knows the quick way. After each event they are compared.

    Attributes:
        failed: how many names were answered with an error.
        results: of what has taken the short way since :meth:`collect` began.
    """

    def __init__(self, size: int, capacity: int, dice: random.Random) -> None:
        self.quick, self.slow = World(size, capacity, True), World(size, capacity, False)
        self.dice, self.size, self.now, self.failed = dice, size, 0.0, 0
        self.queues = [deque[Request]() for _ in range(size)]
        self.submitted: Counter[tuple[int, Key]] = Counter()
        self.results: dict[Key, bytes] = {}
        self.values: dict[tuple[int, str], bytes] = {}  # of eager tensors, by rank and name

    def submit(self, rank: int, requests: Sequence[Request]) -> None:
        """A rank will announce these, in this order, when their names are free."""
        self.queues[rank].extend(requests)

    def run(self, most: int = 10_000) -> None:
        """Ranks announce and read, in random turns, until nobody has anything to do."""
        for _ in range(most):
            turns = [(rank, False) for rank in range(self.size) if self._free(rank)]
            turns += [(rank, True) for rank in range(self.size) if self.quick.inboxes[rank]]
            if not turns:
                return
            rank, reads = self.dice.choice(turns)
            if reads:
                self.quick.read(rank)
                self.slow.read(rank)
                assert self.quick.flying == self.slow.flying
            else:
                self._announce(rank)
            if self.dice.random() < 0.03:
                self.compare_waiting()

    def collect(self) -> dict[Key, bytes]:
        """Run, and return the results of what has taken the short way."""
        self.results = {}
        self.run()
        return self.results

    def tell(self, event: Event) -> None:
        """The same happens in both worlds."""
        self._compare(self.quick.tell(event, self.now), self.slow.tell(event, self.now))

    def pass_time(self) -> None:
        """Long enough for every grace and deadline; then the server looks."""
        self.now += LONG_S
        worlds = (self.quick, self.slow)
        self._compare(*(world.send(world.coordinator.expire(self.now)) for world in worlds))
        (report, out), (other, slow_out) = (world.coordinator.stalled(self.now) for world in worlds)
        assert _words(report) == _words(other)
        self._compare(self.quick.send(out), self.slow.send(slow_out))

    def compare_waiting(self) -> None:
        """Both worlds wait for the same, once all is counted."""
        quick, slow = (world.coordinator._inner.settle(self.now) for world in (self.quick, self.slow))
        self._compare(self.quick.send(quick), self.slow.send(slow))
        assert self.quick.coordinator.waiting() == self.slow.coordinator.waiting()

    def idle(self) -> bool:
        """Has every rank got one answer to everything that it has submitted, and no more?"""
        for world in (self.quick, self.slow):
            if any(world.flying) or any(world.inboxes) or world.answers != self.submitted:
                return False
        return not any(self.queues)

    def _free(self, rank: int) -> int:
        """How many of a rank's next names are not in flight."""
        names: set[Key] = set(self.quick.flying[rank])
        for i, request in enumerate(self.queues[rank]):
            if (key := (request.process_set, request.name)) in names:
                return i
            names.add(key)
        return len(self.queues[rank])

    def _announce(self, rank: int) -> None:
        chunk = [self.queues[rank].popleft() for _ in range(self.dice.randint(1, self._free(rank)))]
        self.submitted.update((rank, (request.process_set, request.name)) for request in chunk)
        eager = {i: self.values[rank, r.name] for i, r in enumerate(chunk) if (rank, r.name) in self.values}
        self._compare(*(world.announce(rank, chunk, self.now, eager) for world in (self.quick, self.slow)))

    def _compare(self, quick: list[Response], slow: list[Response]) -> None:
        assert quick == slow
        assert self.quick.results == self.slow.results
        self.results.update(self.quick.results)
        self.failed += sum(bool(response.error) for response in quick)


def _words(report: str) -> list[str]:
    return sorted(report.replace("[", "").replace("]", "").replace(",", "").split())
