"""Allreduce and broadcast on several machines: one stream leads out of each and one in, and both are kept busy.

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

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from workbench.collectives import Link
from workbench.collectives.pipeline import PLAIN, SEGMENT_BYTES, Half, RingSegment, begin
from workbench.collectives.reduction import fold
from workbench.collectives.ring import chunk_lengths
from workbench.core.backend.base import Array, Reduction, Traffic
from workbench.transport.shm.node import Node

_LAG = 2  # ticks per step on the network: so long a message may take while the leader does the memory's work
_STAGES = 2  # a segment is copied in, reduced in the next tick, and then nobody looks at its stage any more
_LOOK_S = 0.05  # so often the engine is told that the collective goes on
_MOST_SLOTS_BYTES = 128 << 20
_LEADER = 0


class TwoLevelCollectives:
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
        self.node, self.link, self.machines = node, link, machines
        self.wire = Half(wire) if wire else PLAIN
        # A slot is filled one tick after its segment has set out, and read last when that is complete.
        self._slots = 3 + (RingSegment.steps(machines) - 1) * _LAG
        self._bytes = max(4096, min(SEGMENT_BYTES, _MOST_SLOTS_BYTES // self._slots) // 4096 * 4096)
        members = range(node.size)
        self._stages = node.exchange(members, node.keep(_STAGES * self._bytes))
        slots = node.keep(self._slots * self._bytes) if link else 0
        self._first_slot = node.exchange(members, slots)[_LEADER]

    def allreduce(self, array: Array, reduction: Reduction, offsets: Sequence[int], source: Array) -> Traffic:
        """Reduce in place; the same bits on every rank.

        Args:
            array: one-dimensional and contiguous.
            reduction: not Adasum.
            offsets: by rank of this machine, where its array is in shared memory; empty where one of them is not.
            source: what is reduced, which may be ``array``.
        """
        return _Allreduce(self, array, reduction, offsets, source).run()

    def broadcast(self, array: Array, root: int, hop: int, source: Array | None = None) -> Traffic:
        """Copy from the root's machine to all ranks of all machines.

        Args:
            array: one-dimensional and contiguous.
            root: its number on this machine; -1 if it is on another.
            hop: this machine's place in the chain that begins at the root's.
            source: as :meth:`workbench.core.backend.base.Collectives.broadcast`.
        """
        return _Broadcast(self, array, root, hop, source).run()

    def segments(self, array: Array) -> list[Array]:
        """Cut it; all but the last are of the same length."""
        step = self._bytes // array.itemsize
        return [array[low : low + step] for low in range(0, len(array), step)]

    def stages(self, k: int, segment: Array) -> list[Array]:
        """By rank, where it copies its k-th segment."""
        at = k % _STAGES * self._bytes
        return [self.node.array(rank, offset + at, segment) for rank, offset in enumerate(self._stages)]

    def in_place(self, k: int, segment: Array, offsets: Sequence[int]) -> list[Array]:
        """By rank, its k-th segment where it is."""
        return [self.node.array(rank, offset + k * self._bytes, segment) for rank, offset in enumerate(offsets)]

    def slot(self, k: int, segment: Array) -> Array:
        """Where the k-th segment is reduced and sent: in the leader's memory."""
        return self.node.array(_LEADER, self._first_slot + k % self._slots * self._bytes, segment)


class _Steps:
    """What is done to each segment, and in which tick.

    Attributes:
        ticks: that a segment takes.
    """

    ticks: int

    def __init__(self, levels: TwoLevelCollectives, array: Array) -> None:
        self.levels, self.rank = levels, levels.node.rank
        self.segments, self.traffic = levels.segments(array), Traffic()
        self.lag = min(_LAG, len(self.segments))

    def run(self) -> Traffic:
        """All ticks; after the last barrier nobody uses a stage or a slot any more."""
        node, look_at = self.levels.node, time.monotonic() + _LOOK_S
        for tick in range(len(self.segments) + self.ticks - 1):
            for k in range(max(0, tick - self.ticks + 1), min(tick + 1, len(self.segments))):  # the oldest first
                self.step(k, tick - k)
            node.barrier(range(node.size))
            if time.monotonic() > look_at:  # no single wait may be long enough to do it
                node.tick()
                look_at = time.monotonic() + _LOOK_S
        return self.traffic

    def step(self, k: int, age: int) -> None:
        """Do what is due for the k-th segment, which has set out ``age`` ticks ago."""
        raise NotImplementedError

    def slot(self, k: int) -> Array:
        return self.levels.slot(k, self.segments[k])


class _Allreduce(_Steps):
    """See :meth:`TwoLevelCollectives.allreduce`."""

    def __init__(
        self, levels: TwoLevelCollectives, array: Array, reduction: Reduction, offsets: Sequence[int], source: Array
    ) -> None:
        super().__init__(levels, array)
        self._sources = levels.segments(source)
        self._reduction, self._offsets = reduction, offsets
        self._wire = levels.wire if reduction.dtype in ("float32", "float64") else PLAIN
        self._inside = replace(reduction, postscale=1.0, divisor=1)
        self._after: Callable[[Array], None] = reduction.after
        if self._wire is not PLAIN and reduction.op in ("sum", "average"):
            # Scaled before it travels: the sum of all ranks may be too large for 16 bits where their mean is not.
            self._inside, self._after = reduction, _unscaled
        self._rings: dict[int, RingSegment] = {}
        self._complete = 2 + (RingSegment.steps(levels.machines) - 1) * self.lag
        self.ticks = self._complete + 2

    def step(self, k: int, age: int) -> None:
        if age == 0 and not self._offsets:
            self.levels.stages(k, self.segments[k])[self.rank][...] = self._sources[k]
        elif age == 1:
            self._reduce(k)
        elif 2 <= age <= self._complete and self.levels.link and (age - 2) % self.lag == 0:
            self._send(self.levels.link, k)
        elif age == self._complete + 1:
            self.segments[k][...] = self.slot(k)

    def _reduce(self, k: int) -> None:
        """This rank's chunk of all ranks' segments."""
        segment, levels = self.segments[k], self.levels
        parts = levels.in_place(k, segment, self._offsets) if self._offsets else levels.stages(k, segment)
        lengths = chunk_lengths(len(segment), levels.node.size)
        start = sum(lengths[: self.rank])
        mine = slice(start, start + lengths[self.rank])
        fold([part[mine] for part in parts], self._inside, self.slot(k)[mine])

    def _send(self, link: Link, k: int) -> None:
        if k not in self._rings:
            self._rings[k] = RingSegment(link, self.slot(k), self._reduction.combine, self._after, self._wire)
        ring = self._rings[k]
        ring.advance()
        if ring.complete:
            self.traffic += self._rings.pop(k).traffic


class _Broadcast(_Steps):
    """See :meth:`TwoLevelCollectives.broadcast`."""

    def __init__(self, levels: TwoLevelCollectives, array: Array, root: int, hop: int, source: Array | None) -> None:
        super().__init__(levels, array)
        self._given = self.segments if source is None else levels.segments(source)
        self._root, self._hop, self._has_it = root, hop, self.rank == root and source is None
        self._waits: dict[int, Callable[[], None]] = {}
        self.ticks = 2 * self.lag + 1

    def step(self, k: int, age: int) -> None:
        """To the slot, from the root or from the machine before; on to the next one, and to the arrays."""
        link = self.levels.link
        if age == 0 and self.rank == self._root:
            self.slot(k)[...] = self._given[k]
        elif age == 0 and link and self._hop:
            self._begin(link, k, None, self.slot(k))
        if age == self.lag and link:
            self._end(k)
            if self._hop < link.size - 1:
                self._begin(link, k, self.slot(k), None)
                self.traffic.sent(self.slot(k))
        if age == self.lag + 1 and not self._has_it:
            self.segments[k][...] = self.slot(k)
        if age == 2 * self.lag and link:
            self._end(k)

    def _begin(self, link: Link, k: int, send: Array | None, recv: Array | None) -> None:
        self._waits[k] = begin(link, send, (link.rank + 1) % link.size, recv, (link.rank - 1) % link.size)

    def _end(self, k: int) -> None:
        if wait := self._waits.pop(k, None):
            wait()


def _unscaled(chunk: Array) -> None:
    """It is scaled already."""
