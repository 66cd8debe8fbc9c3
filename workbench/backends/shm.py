"""Shared memory: the data plane of ranks on one machine. Each rank reduces its own chunk across all ranks' memory.

Four ways of an allreduce:

1. *Where it lies*: every rank's array lies in shared memory, in places that the response tells. Nothing is copied, and
   since all have announced that theirs is ready, the ranks meet only once, at the end.
2. *Short arrays* are copied into the stage; then every rank reduces all of it for itself.
3. *Wherever they lie*: where the system lets ranks read and write each other's memory (``remote.py``).
4. Else they go over the stage in segments that stay in the cache, in a pipeline: while segment k is copied in,
   k - 1 is reduced and k - 2 copied out, with one meeting per segment. A rank's own chunk is not copied in, for only
   this rank reads it.

What does not gain by it (alltoall, Adasum) goes the way of the backend beneath.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from workbench.backends.base import Array, Backend, Buffer, Reduction, Traffic
from workbench.backends.host_memory import HOST
from workbench.backends.node import HEADER_BYTES, Node
from workbench.backends.remote import RemoteMemory
from workbench.collectives.reduction import fold
from workbench.collectives.ring import chunk_lengths
from workbench.collectives.shared_memory import reduce_across, reduce_into

SEGMENT_BYTES = 1 << 20
_SHORT_BYTES = 16 << 10
_SLOTS = 3  # of the stage; one is filled while the one before is reduced and the one before that is read
_STAGE, _STAGE_BYTES = HEADER_BYTES, _SLOTS * SEGMENT_BYTES
_FUSION = _STAGE + _STAGE_BYTES


def reserved_bytes(fusion_bytes: int) -> int:
    """What stands behind the header of every arena, in the same place: the stage, and the fusion buffer."""
    return _STAGE_BYTES + fusion_bytes


class ShmBackend:
    """See :class:`workbench.backends.base.Backend`.

    Args:
        beneath: connects the same ranks in another way.
        node: the ranks of this machine.
        members: those of them that take part, by their number in ``node``.
        fusion_bytes: size of the fusion buffer.
    """

    name = "SHM"

    memory = HOST

    def __init__(self, beneath: Backend, node: Node, fusion_bytes: int, members: Sequence[int] | None = None) -> None:
        self.beneath, self._node, self._fusion_bytes = beneath, node, fusion_bytes
        self._members = list(range(node.size) if members is None else members)
        self.rank, self.size = self._members.index(node.rank), len(self._members)
        self._slot = count()
        self._stages = [_STAGE] * self.size
        self._remote = RemoteMemory(node, self._members) if node.pids else None
        if members is not None:  # a stage of their own: a rank in two sets may be slow in one of them
            # Used again when this set is gone, but not freed: a slow rank may still read the last result there.
            stage = node.spare.pop() if node.spare else self.offer(_STAGE_BYTES)
            weakref.finalize(self, node.spare.append, stage).atexit = False
            self._stages = node.exchange(self._members, stage)

    def index(self, rank: int) -> int:
        """As the backend beneath."""
        return self.beneath.index(rank)

    def subset(self, ranks: Sequence[int]) -> Backend:
        """Some of the ranks, over the same memory."""
        members = [self._members[self.index(rank)] for rank in ranks]
        return ShmBackend(self.beneath.subset(ranks), self._node, self._fusion_bytes, members)

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """Each rank its chunk; nothing is sent."""
        if self.size == 1 or reduction.op == "adasum" or not array.nbytes:
            return self.beneath.allreduce(array, reduction)
        if not places and self._is_fusion_buffer(array):
            places = [self.place(array)] * self.size
            self._meet()  # each has filled its own
        if places:
            self._where_they_lie(array, reduction, places)
        elif array.nbytes <= _SHORT_BYTES:
            self._short(array, reduction)
        elif self._remote:
            self._remote.allreduce(array, reduction)
        else:
            self._staged(array, reduction)
        return Traffic()

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, places: Sequence[int] = ()
    ) -> Traffic:
        """Where the arrays lie in shared memory each rank reduces its part; otherwise as the backend beneath."""
        if not places or self.size == 1:
            return self.beneath.reducescatter(array, lengths, reduction)
        start = sum(lengths[: self.rank])
        mine = array[start : start + lengths[self.rank]]
        reduce_into(mine, self._arrays(array, places), start, reduction)
        self._meet()
        return Traffic()

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """Each rank copies its part to the stage, and all others from there; or they read it where it lies."""
        if self._remote and array.nbytes > _SHORT_BYTES:
            self._remote.allgather(array, lengths)
            return Traffic()
        ends = np.cumsum(lengths)
        parts = [array[end - length : end] for length, end in zip(lengths, ends, strict=True)]
        step = SEGMENT_BYTES // array.itemsize
        for low in range(0, max(lengths, default=0), step):
            pieces = [part[low : low + step] for part in parts]
            self._publish(pieces, range(self.size))
        return Traffic()

    def broadcast(self, array: Array, root: int) -> Traffic:
        """The root copies to the stage, and all others from there; or they read it where it lies."""
        if self.size == 1:
            return Traffic()
        if self._remote and array.nbytes > _SHORT_BYTES:
            self._remote.broadcast(array, root)
            return Traffic()
        step = SEGMENT_BYTES // array.itemsize
        for low in range(0, len(array), step):
            pieces = [array[:0]] * self.size
            pieces[root] = array[low : low + step]
            self._publish(pieces, [root])
        return Traffic()

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """As the backend beneath."""
        return self.beneath.alltoall(send, send_lengths, recv, recv_lengths)

    def buffer(self, nbytes: int) -> Buffer:
        """The fusion buffer, which begins at one place in every rank's arena."""
        if nbytes > self._fusion_bytes:
            return self.beneath.buffer(nbytes)
        return _FusionBuffer(self._node.bytes(self._node.rank, _FUSION, nbytes))

    def allocate(self, nbytes: int) -> Array:
        """A piece of the arena; ordinary memory when the job has ended."""
        own = self._node.own
        return own.allocate(nbytes) if own else self.beneath.allocate(nbytes)

    def place(self, array: Array) -> int:
        """Where in the arena."""
        own = self._node.own
        return own.place(array) if own else -1

    def offer(self, nbytes: int) -> int:
        """A piece of the arena."""
        own = self._node.own
        return own.keep(nbytes) if own else -1

    def reach(self, rank: int, place: int, nbytes: int) -> Array | None:
        """A piece of its arena."""
        return None if place < 0 else self._node.bytes(self._members[rank], place, nbytes)

    def tick(self, function: Callable[[], None]) -> None:
        """Amid long meetings, and where the backend beneath waits."""
        self._node.tick = function
        self.beneath.tick(function)

    def close(self, clean: bool = True) -> None:
        """Close the backend beneath. Memory ends with the last array over it."""
        self.beneath.close(clean)
        self._node.close()

    # --- the ways -----------------------------------------------------------------------------------

    def _where_they_lie(self, array: Array, reduction: Reduction, places: Sequence[int]) -> None:
        start, stop = self._chunk(len(array))
        reduce_across(self._arrays(array, places), start, stop, reduction)
        self._meet()

    def _short(self, array: Array, reduction: Reduction) -> None:
        slot = self._next_slot()
        stages = [self._staged_part(rank, slot, array) for rank in range(self.size)]
        stages[self.rank][...] = array
        self._meet()
        fold(stages, reduction, array)

    def _staged(self, array: Array, reduction: Reduction) -> None:
        step = SEGMENT_BYTES // array.itemsize
        segments = [array[low : low + step] for low in range(0, len(array), step)]
        slots = [self._next_slot() for _ in segments]
        for k in range(len(segments) + 2):
            if k < len(segments):
                self._copy_in(segments[k], slots[k])
            if 0 < k <= len(segments):
                self._reduce(segments[k - 1], slots[k - 1], reduction)
            if k > 1:
                self._copy_out(segments[k - 2], slots[k - 2])
            if k <= len(segments):
                self._meet()

    def _copy_in(self, segment: Array, slot: int) -> None:
        stage, (start, stop) = self._staged_part(self.rank, slot, segment), self._chunk(len(segment))
        stage[:start], stage[stop:] = segment[:start], segment[stop:]

    def _reduce(self, segment: Array, slot: int, reduction: Reduction) -> None:
        start, stop = self._chunk(len(segment))
        parts = [self._staged_part(rank, slot, segment)[start:stop] for rank in range(self.size)]
        result, parts[self.rank] = parts[self.rank], segment[start:stop]
        fold(parts, reduction, result)
        segment[start:stop] = result

    def _copy_out(self, segment: Array, slot: int) -> None:
        start = 0
        for rank, length in enumerate(chunk_lengths(len(segment), self.size)):
            if rank != self.rank:
                stage = self._staged_part(rank, slot, segment)
                segment[start : start + length] = stage[start : start + length]
            start += length

    def _publish(self, pieces: Sequence[Array], roots: Sequence[int]) -> None:
        """Give one's own piece to all, and get those of ``roots``."""
        slot = self._next_slot()
        self._staged_part(self.rank, slot, pieces[self.rank])[...] = pieces[self.rank]
        self._meet()
        for root in roots:
            if root != self.rank:
                pieces[root][...] = self._staged_part(root, slot, pieces[root])

    # --- memory -------------------------------------------------------------------------------------

    def _is_fusion_buffer(self, array: Array) -> bool:
        return _FUSION <= self.place(array) < _FUSION + self._fusion_bytes

    def _next_slot(self) -> int:
        return next(self._slot) % _SLOTS * SEGMENT_BYTES

    def _staged_part(self, rank: int, slot: int, like: Array) -> Array:
        return self._node.array(self._members[rank], self._stages[rank] + slot, like)

    def _arrays(self, array: Array, places: Sequence[int]) -> list[Array]:
        return [self._node.array(member, place, array) for member, place in zip(self._members, places, strict=True)]

    def _chunk(self, length: int) -> tuple[int, int]:
        lengths = chunk_lengths(length, self.size)
        start = sum(lengths[: self.rank])
        return start, start + lengths[self.rank]

    def _meet(self) -> None:
        self._node.meet(self._members)


class _FusionBuffer:
    """A part of the arena that is there anyway."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def release(self) -> None:
        """Nothing to do: the next batch uses the same memory."""
