"""Allreduce and broadcast on several machines: one stream leads out of each and one in, and neither ever rests.

The first rank of each machine is its *leader*, and alone sends to other machines. An array is cut into segments. In
every *tick* each segment goes one step further on its way, and one barrier ends the tick on the machine:

===================  ==========================================================================================
a segment is         by
===================  ==========================================================================================
copied to the stage  every rank, if it is not in shared memory already
reduced              every rank its chunk of all ranks' segments, to the leader's *slot*
sent round the ring  the leader, in the slot, in 2(m - 1) steps for m machines (``collectives/pipeline.py``)
copied to the array  every rank, from the slot
===================  ==========================================================================================

So the memory's work on some segments is done while others are on the network. For K bytes 2(m - 1)/m · K leave each
machine, however many ranks it has.

In a broadcast the machines are a chain that begins at the root's, and K bytes leave each but the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workbench.collectives import Link
from workbench.collectives.pipeline import PLAIN, SEGMENT_BYTES, Half, RingSegment, begin
from workbench.collectives.reduction import fold
from workbench.collectives.ring import chunk_lengths
from workbench.transport.base import Array, Reduction, Traffic
from workbench.transport.shm.node import Node

_LAG = 2  # ticks per step on the network: so long a message may take while the leader does the memory's work
_STAGES = 3  # a segment is copied in, reduced in the next tick, and then nobody looks at its stage any more
_MOST_SLOTS_BYTES = 128 << 20
_LEADER = 0


class TwoLevels:
    """The ranks of this machine, among those of others.

    Args:
        node: this machine's ranks; all of them make this object at the same point.
        link: to the other leaders, if this rank is one.
        machines: how many there are.
        wire: float16 or bfloat16, if floats are to travel so between machines.

    Attributes:
        link: as given.
    """

    def __init__(self, node: Node, link: Link | None, machines: int, wire: str = "") -> None:
        self._node, self.link, self._steps = node, link, RingSegment.steps(machines)
        self._members, self._wire = range(node.size), Half(wire) if wire else PLAIN
        # A slot is filled one tick after its segment has set out, and read last when that is complete.
        self._slots = 3 + (self._steps - 1) * _LAG
        self._bytes = max(4096, min(SEGMENT_BYTES, _MOST_SLOTS_BYTES // self._slots) // 4096 * 4096)
        self._stages = node.exchange(self._members, node.keep(_STAGES * self._bytes))
        slots = node.keep(self._slots * self._bytes) if link else 0
        self._first_slot = node.exchange(self._members, slots)[_LEADER]

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int]) -> Traffic:
        """Reduce in place; the same bits on every rank.

        Args:
            array: one-dimensional and contiguous.
            reduction: not Adasum.
            places: by rank of this machine, where its array is in shared memory; empty where one of them is not.
        """
        inside, rings, traffic = replace(reduction, postscale=1.0, divisor=1), dict[int, RingSegment](), Traffic()
        wire = self._wire if reduction.dtype in ("float32", "float64") else PLAIN
        segments = self._segments(array)
        lag = min(_LAG, len(segments))
        complete = 2 + (self._steps - 1) * lag
        for tick in range(len(segments) + complete + 1):
            if tick < len(segments) and not places:
                self._stage(tick, segments[tick])[self._node.rank][...] = segments[tick]
            if 0 <= (k := tick - 1) < len(segments):
                parts = self._parts(array, places, k) if places else self._stage(k, segments[k])
                self._reduce(parts, inside, self._slot(k, segments[k]))
            if self.link and 0 <= (k := tick - 2) < len(segments):
                slot = self._slot(k, segments[k])
                rings[k] = RingSegment(self.link, slot, reduction.combine, reduction.after, wire)
            for k, ring in list(rings.items()):
                if (tick - 2 - k) % lag == 0:
                    ring.advance()
                if tick == k + complete:
                    traffic += rings.pop(k).traffic
            if (k := tick - complete - 1) >= 0:
                segments[k][...] = self._slot(k, segments[k])
            if tick < len(segments) + complete:
                self._node.barrier(self._members)
        return traffic

    def broadcast(self, array: Array, root: int, hop: int) -> Traffic:
        """Copy from the root's machine to all ranks of all machines, in place.

        Args:
            array: one-dimensional and contiguous.
            root: its number on this machine; -1 if it is on another.
            hop: this machine's place in the chain that begins at the root's.
        """
        segments, traffic = self._segments(array), Traffic()
        lag, waits = min(_LAG, len(segments)), dict[tuple[str, int], Callable[[], None]]()
        self._node.barrier(self._members)  # nobody reads in a slot any more
        for tick in range(len(segments) + 2 * lag + 1):
            if tick < len(segments):
                slot = self._slot(tick, segments[tick])
                if self._node.rank == root:
                    slot[...] = segments[tick]
                if self.link and hop > 0:
                    waits["came", tick] = begin(self.link, None, self._next(1), slot, self._next(-1))
            if self.link and 0 <= (k := tick - lag) < len(segments):
                waits.pop(("came", k), _nothing)()
                if hop < self.link.size - 1:
                    slot = self._slot(k, segments[k])
                    waits["sent", k] = begin(self.link, slot, self._next(1), None, self._next(-1))
                    traffic.sent(slot)
            waits.pop(("sent", tick - 2 * lag), _nothing)()
            if 0 <= (k := tick - lag - 1) < len(segments) and self._node.rank != root:
                segments[k][...] = self._slot(k, segments[k])
            if tick < len(segments) + 2 * lag:
                self._node.barrier(self._members)
        return traffic

    def _next(self, step: int) -> int:
        assert self.link
        return (self.link.rank + step) % self.link.size

    def _segments(self, array: Array) -> list[Array]:
        step = self._bytes // array.itemsize
        return [array[low : low + step] for low in range(0, len(array), step)]

    def _stage(self, k: int, segment: Array) -> list[Array]:
        """By rank, where it has copied its k-th segment."""
        at = k % _STAGES * self._bytes
        return [self._node.array(rank, place + at, segment) for rank, place in enumerate(self._stages)]

    def _parts(self, array: Array, places: Sequence[int], k: int) -> list[Array]:
        """By rank, its k-th segment where it is."""
        segment = self._segments(array)[k]
        return [self._node.array(rank, place + k * self._bytes, segment) for rank, place in enumerate(places)]

    def _slot(self, k: int, segment: Array) -> Array:
        """Where the k-th segment is reduced and sent: in the leader's memory."""
        return self._node.array(_LEADER, self._first_slot + k % self._slots * self._bytes, segment)

    def _reduce(self, parts: Sequence[Array], reduction: Reduction, slot: Array) -> None:
        """This rank's chunk of a segment."""
        lengths = chunk_lengths(len(slot), self._node.size)
        start = sum(lengths[: self._node.rank])
        mine = slice(start, start + lengths[self._node.rank])
        fold([part[mine] for part in parts], reduction, slot[mine])


def _nothing() -> None:
    """Nobody is waited for."""


__all__ = ["TwoLevels"]
