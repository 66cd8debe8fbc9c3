"""A channel to rank 0 that goes around it where it can: known names go by the slots, all else by another channel."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from workbench.core.agreement import respond
from workbench.core.messages import Announce, Decision, Differs, Event, Kind, Response, Values
from workbench.runtime.control.channel import Rank0Channel
from workbench.runtime.control.codec import decode_request
from workbench.runtime.control.slots import Slots
from workbench.runtime.steady.eager import result_of
from workbench.runtime.steady.steady_state import Record, Unit
from workbench.runtime.trace.timeline import Timeline


class SlotsChannel:
    """See :class:`workbench.runtime.control.channel.Rank0Channel`.

    Args:
        inner: to rank 0.
        slots: of all ranks.
        rank, size: of this rank.

    Attributes:
        known: this rank's responses by their cache id; the announcer's.
        timeline: on rank 0, which has heard of announcements and responses from the coordinator else.
    """

    def __init__(self, inner: Rank0Channel, slots: Slots, rank: int, size: int) -> None:
        self._inner, self._slots, self._rank, self._ranks = inner, slots, rank, range(size)
        self._found: list[Decision] = []
        self._held: list[Event] = []
        self._number, self._differed = 0, False
        self.known: Mapping[int, Response] = {}
        self.timeline: Timeline | None = None
        self._bell, self._files, self._poller = -1, list[int](), select.poll()

    def open(self, poller: select.poll, wake: Callable[[], None]) -> None:
        self._poller = poller
        self._inner.open(poller, wake)

    def bell(self) -> tuple[int, int]:
        """Make a pipe that ends this rank's wait; the process, and the descriptor that others write to, -1 if none."""
        try:
            self._bell, ring = self._files = list(os.pipe())
        except OSError:
            return os.getpid(), -1
        os.set_blocking(self._bell, False)
        self._poller.register(self._bell, select.POLLIN)
        return os.getpid(), ring

    def wakes(self, bells: Sequence[tuple[int, int]]) -> list[Callable[[], None]]:
        """What ends the other ranks' waits: a byte in their pipes.

        Raises:
            OSError: a process is not to be seen from here.
        """
        for pid, file in bells:
            self._files.append(os.open(f"/proc/{pid}/fd/{file}", os.O_WRONLY | os.O_NONBLOCK))
        return [partial(_ring, each) for each in self._files[-len(bells) :]]

    def send(self, event: Event) -> None:
        if isinstance(event, Announce) and event.items and self._slots.write(event):
            return
        if self._slots.awaits_word():  # or it could overtake what has to be announced anew
            self._held.append(event)
        else:
            self._inner.send(event)

    @property
    def spins(self) -> bool:
        return self._slots.writes or self._inner.spins

    def take(self, spinning: bool = False) -> list[Decision]:
        found = self._decided()
        if not found and not (spinning and self._slots.writes):
            for decision in self._inner.take(spinning):
                found += self._with_terms(decision)
        return found

    def wait(self, timeout_s: float) -> Sequence[tuple[int, int]]:
        self._slots.sleep(True)
        try:
            self._found = self._decided()  # after saying so: who comes later wakes this rank
            ready = self._inner.wait(0.0 if self._found else timeout_s)
        finally:
            self._slots.sleep(False)
        if any(file == self._bell for file, _ in ready):
            os.read(self._bell, 4096)
        return ready

    def _decided(self) -> list[Decision]:
        """What is complete in the slots."""
        found, self._found = self._found, []
        while unit := self._slots.take():
            found.append(self._decision(unit))
        if self._slots.differs and not self._differed:
            self._differed = True
            self._inner.send(Differs(self._rank))
        return found

    def heard(self, rank: int, record: Record) -> None:
        """A rank has announced these."""
        if self.timeline and self.timeline.on:
            texts = record.values
            named = [self.known[each] if each else decode_request(bytes(texts[i])) for i, each in enumerate(record.ids)]
            self.timeline.announced(rank, named)

    def agreed(self, responses: Sequence[Response]) -> None:
        """For observers, who hear of it on rank 0."""
        if self.timeline:
            decision = Decision(self._number, list(responses))
            self.timeline.completed(self._slots.last, decision)
            if self.timeline.on:
                self.timeline.responded(decision)

    def _decision(self, unit: Unit) -> Decision:
        responses = [self.known[each] if each else self._respond(unit, i) for i, each in enumerate(unit.ids)]
        results: Values = {}
        for i, values in unit.values_by_rank():
            if unit.ids[i] and (result := result_of(responses[i], values, self._ranks, len(self._ranks))):
                results[i] = result
        self._slots.release()
        self.agreed(responses)
        items = [each or responses[i] for i, each in enumerate(unit.ids)]
        return Decision(self._number, items, results)

    def _respond(self, unit: Unit, i: int) -> Response:
        """To an unnamed tensor, of which all ranks have said the same."""
        request = decode_request(bytes(unit.values[self._rank][i]))
        return respond(dict.fromkeys(self._ranks, request))

    def _with_terms(self, decision: Decision) -> list[Decision]:
        """Rank 0's word; before it what was still complete in the slots, if it closes a term."""
        units: list[Decision] = []
        for item in decision.items:
            if isinstance(item, Response) and item.kind is Kind.SLOTS:
                if item.rows:
                    complete, *seen = item.rows
                    last, again = self._slots.finish(complete, seen)
                    units += map(self._decision, last)
                    self._held[:0] = again
                    self._send_held()
                else:
                    self._number, self._differed = decision.number, False
                    self._slots.join(item.root, decision.number)
        return [*units, decision]

    def _send_held(self) -> None:
        held, self._held = self._held, []
        for event in held:
            self._inner.send(event)

    def look(self, now: float, slept_s: float) -> None:
        self._inner.look(now, slept_s)

    def lost(self) -> str:
        return self._inner.lost()

    def sockets(self) -> list[socket.socket]:
        return self._inner.sockets()

    def close(self) -> None:
        self._send_held()
        self._inner.close()
        self._slots.disconnect()
        while self._files:
            os.close(self._files.pop())


def _ring(bell: int) -> None:
    with contextlib.suppress(OSError):  # it is full of such bytes, or the process has ended
        os.write(bell, b"!")
