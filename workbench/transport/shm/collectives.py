"""Collectives in shared memory: each rank reduces its own chunk across all ranks' memory; nothing is sent.

Four algorithms of an allreduce:

1. *In place*: every rank's array is in shared memory, at places that the response tells. Nothing is copied, and
   since all have announced that theirs is ready, there is only one barrier, at the end.
2. *Short arrays* are copied into the stage; then every rank reduces all of it for itself.
3. *Cross memory*: where the system lets ranks read each other's memory (``cross_memory.py``).
4. *Staged*: over the stage in segments that stay in the cache, in a pipeline: while segment k is copied in,
   k - 1 is reduced and k - 2 copied out, with one barrier per segment. A rank's own chunk is not copied in, for only
   this rank reads it.

Alltoall, Adasum, and a reducescatter of arrays outside of shared memory are left to the *flat* collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from workbench.collectives.reduction import fold
from workbench.collectives.ring import chunk_lengths
from workbench.collectives.shared_memory import reduce_across, reduce_into
from workbench.transport.base import Array, Collectives, Reduction, Traffic
from workbench.transport.shm.cross_memory import CrossMemory
from workbench.transport.shm.node import Node

SEGMENT_BYTES = 1 << 20
_SHORT_BYTES = 16 << 10
_SLOTS = 3  # of the stage; one is filled while the one before is reduced and the one before that is read
STAGE_BYTES = _SLOTS * SEGMENT_BYTES


class ShmCollectives:
    """See :class:`workbench.transport.base.Collectives`.

    Args:
        flat: of the same ranks, for what does not gain by shared memory.
        node: the ranks of this machine.
        members: those of them that take part, by their number in ``node``.
        stages: by rank, where the stage begins in its arena.
        fusion: the places of the fusion buffer, the same in every arena.
    """

    def __init__(
        self, flat: Collectives, node: Node, members: Sequence[int], stages: Sequence[int], fusion: range
    ) -> None:
        self._flat, self._node, self._members, self._stages, self._fusion = flat, node, members, stages, fusion
        self._rank, self._size = members.index(node.rank), len(members)
        self._slot = count()
        self._cross = CrossMemory(node, members) if node.pids else None
        self.alltoall = flat.alltoall

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """Each rank its chunk; nothing is sent."""
        if self._size == 1 or reduction.op == "adasum" or not array.nbytes:
            return self._flat.allreduce(array, reduction)
        if not places and (place := self._node.place(array)) in self._fusion:
            places = [place] * self._size
            self._barrier()  # each has filled its own
        if places:
            self._in_place(array, reduction, places)
        elif array.nbytes <= _SHORT_BYTES:
            self._short(array, reduction)
        elif self._cross:
            self._cross.allreduce(array, reduction)
        else:
            self._staged(array, reduction)
        return Traffic()

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, places: Sequence[int] = ()
    ) -> Traffic:
        """Where the arrays are in shared memory each rank reduces its part; otherwise as without it."""
        if not places or self._size == 1:
            return self._flat.reducescatter(array, lengths, reduction)
        start = sum(lengths[: self._rank])
        mine = array[start : start + lengths[self._rank]]
        reduce_into(mine, self._arrays(array, places), start, reduction)
        self._barrier()
        return Traffic()

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """Each rank copies its part to the stage, and all others from there; or they read it in its memory."""
        if self._cross and array.nbytes > _SHORT_BYTES:
            self._cross.allgather(array, lengths)
            return Traffic()
        ends = np.cumsum(lengths)
        parts = [array[end - length : end] for length, end in zip(lengths, ends, strict=True)]
        step = SEGMENT_BYTES // array.itemsize
        for low in range(0, max(lengths, default=0), step):
            pieces = [part[low : low + step] for part in parts]
            self._publish(pieces, range(self._size))
        return Traffic()

    def broadcast(self, array: Array, root: int) -> Traffic:
        """The root copies to the stage, and all others from there; or they read it in its memory."""
        if self._size == 1:
            return Traffic()
        if self._cross and array.nbytes > _SHORT_BYTES:
            self._cross.broadcast(array, root)
            return Traffic()
        step = SEGMENT_BYTES // array.itemsize
        for low in range(0, len(array), step):
            pieces = [array[:0]] * self._size
            pieces[root] = array[low : low + step]
            self._publish(pieces, [root])
        return Traffic()

    # --- algorithms ---------------------------------------------------------------------------------

    def _in_place(self, array: Array, reduction: Reduction, places: Sequence[int]) -> None:
        start, stop = self._chunk(len(array))
        reduce_across(self._arrays(array, places), start, stop, reduction)
        self._barrier()

    def _short(self, array: Array, reduction: Reduction) -> None:
        slot = self._next_slot()
        stages = [self._staged_part(rank, slot, array) for rank in range(self._size)]
        stages[self._rank][...] = array
        self._barrier()
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
                self._barrier()

    def _copy_in(self, segment: Array, slot: int) -> None:
        stage, (start, stop) = self._staged_part(self._rank, slot, segment), self._chunk(len(segment))
        stage[:start], stage[stop:] = segment[:start], segment[stop:]

    def _reduce(self, segment: Array, slot: int, reduction: Reduction) -> None:
        start, stop = self._chunk(len(segment))
        parts = [self._staged_part(rank, slot, segment)[start:stop] for rank in range(self._size)]
        result, parts[self._rank] = parts[self._rank], segment[start:stop]
        fold(parts, reduction, result)
        segment[start:stop] = result

    def _copy_out(self, segment: Array, slot: int) -> None:
        start = 0
        for rank, length in enumerate(chunk_lengths(len(segment), self._size)):
            if rank != self._rank:
                stage = self._staged_part(rank, slot, segment)
                segment[start : start + length] = stage[start : start + length]
            start += length

    def _publish(self, pieces: Sequence[Array], roots: Sequence[int]) -> None:
        """Give one's own piece to all, and get those of ``roots``."""
        slot = self._next_slot()
        self._staged_part(self._rank, slot, pieces[self._rank])[...] = pieces[self._rank]
        self._barrier()
        for root in roots:
            if root != self._rank:
                pieces[root][...] = self._staged_part(root, slot, pieces[root])

    # --- memory -------------------------------------------------------------------------------------

    def _next_slot(self) -> int:
        return next(self._slot) % _SLOTS * SEGMENT_BYTES

    def _staged_part(self, rank: int, slot: int, like: Array) -> Array:
        return self._node.array(self._members[rank], self._stages[rank] + slot, like)

    def _arrays(self, array: Array, places: Sequence[int]) -> list[Array]:
        return [self._node.array(member, place, array) for member, place in zip(self._members, places, strict=True)]

    def _chunk(self, length: int) -> tuple[int, int]:
        lengths = chunk_lengths(length, self._size)
        start = sum(lengths[: self._rank])
        return start, start + lengths[self._rank]

    def _barrier(self) -> None:
        self._node.barrier(self._members)
