"""Collectives in shared memory: each rank reduces its own chunk across all ranks' memory; nothing is sent.

Four algorithms of an allreduce:

1. *In place*: every rank's array is in shared memory, at offsets that the response has. Nothing is copied, and
   since all have announced that theirs is ready, there is only one barrier, at the end.
2. *Short arrays* are copied into the stage; then every rank reduces all of it for itself.
3. *Staged*: over the stage in segments that stay in the cache (``staged.py``); so are many arrays at once.
4. *Cross memory*: long arrays, where the system lets ranks read each other's memory (``cross_memory.py``), and where
   that is faster. It is so where cores of different caches take long to write what another one has just read; it is not
   where small pages take long to look up. So both ways are tried (:class:`Fastest`).

A long allgather or broadcast is tried both ways, too. Alltoall and a long reducescatter read the others' memory. A
short reducescatter, Adasum, and all that gain nothing where the system forbids cross memory, are left to the *flat*
collectives.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from workbench.collectives.reduction import fold
from workbench.collectives.ring import chunk_lengths, cut, part
from workbench.collectives.shared_memory import reduce_across, reduce_into
from workbench.core.backend.base import Array, Collectives, Reduction, Traffic
from workbench.transport.shm.cross_memory import CrossMemory
from workbench.transport.shm.node import Node
from workbench.transport.shm.staged import SEGMENT_BYTES, Staged

_SHORT_BYTES = 16 << 10
_STAGED_BYTES = 12 << 20
_PUBLISHED_BYTES = 2 << 20  # of a result that goes over the stage in any case
_TRIES = 3  # of each way, before one is chosen
_LEAST_BYTES = 8 << 10  # of an array, in the mean over a batch; smaller ones are packed in less time


class Fastest:
    """Of several ways to do the same, the one that is fastest here: the first calls try each, then the best one stays.

    Each power of two of bytes has its own. A call's time is that of the slowest rank, so all choose alike.

    Args:
        node, members: the ranks.
        ways: what may be called.

    Attributes:
        clock: in nanoseconds.
    """

    def __init__(self, node: Node, members: Sequence[int], ways: Sequence[Callable[..., None]]) -> None:
        self._node, self._members, self._ways = node, members, ways
        self._tried, self.clock = defaultdict[int, list[int]](list), time.perf_counter_ns  # times, of each way in turn

    def __call__(self, nbytes: int, *args: Any) -> None:
        """Do it, to so many bytes."""
        tried, ways = self._tried[nbytes.bit_length()], self._ways
        if len(tried) >= _TRIES * len(ways):
            return ways[tried.index(min(tried)) % len(ways)](*args)
        begun = self.clock()
        ways[len(tried) % len(ways)](*args)
        took = (self.clock() - begun << 20) // nbytes
        tried.append(max(self._node.exchange(self._members, took)))


class ShmCollectives:
    """See :class:`workbench.core.backend.base.Collectives`.

    Args:
        flat: of the same ranks, for what does not gain by shared memory.
        node: the ranks of this machine.
        members: those of them that take part, by their number in ``node``.
        stages: by rank, where the stage begins in its arena.
        fusion: the offsets of the fusion buffer, the same in every arena.
    """

    def __init__(
        self, flat: Collectives, node: Node, members: Sequence[int], stages: Sequence[int], fusion: range
    ) -> None:
        self._flat, self._node, self._members, self._fusion = flat, node, members, fusion
        self._rank, self._size = members.index(node.rank), len(members)
        self._cross = CrossMemory(node, members) if node.pids else None
        self._stage = Staged(node, members, stages)
        if cross := self._cross:
            long = CrossMemory(node, members, blocks_bytes=2 << 20)  # where the second cache is large
            self._reduce = Fastest(node, members, [cross.allreduce, long.allreduce, self._staged])
            self._gather = Fastest(node, members, [cross.allgather, self._gather_staged])
            self._copy = Fastest(node, members, [cross.broadcast, self._copy_staged])

    def allreduce(
        self, array: Array, reduction: Reduction, offsets: Sequence[int] = (), source: Array | None = None
    ) -> Traffic:
        """Each rank its chunk; nothing is sent."""
        if self._size == 1 or reduction.op == "adasum" or not array.nbytes:
            return self._flat.allreduce(array, reduction, offsets, source)
        given = array if source is None else source
        if offsets := offsets or self._in_fusion_buffers(array):
            self._in_place(array, reduction, offsets)
        elif array.nbytes <= _SHORT_BYTES:
            self._short(array, reduction, given)
        elif self._cross and array.nbytes > _STAGED_BYTES:
            self._reduce(array.nbytes, array, reduction, given)
        else:
            self._staged(array, reduction, given)
        return Traffic()

    def takes_batch(self, count: int, nbytes: int) -> bool:
        """Where the arrays are not too small."""
        return self._size > 1 and nbytes >= count * _LEAST_BYTES

    def allreduce_batch(self, arrays: Sequence[Array], reduction: Reduction, sources: Sequence[Array]) -> None:
        self._stage.allreduce(arrays, reduction, sources)

    def spares(self, nbytes: int) -> bool:
        return self._cross is not None and self._size > 1 and nbytes > _SHORT_BYTES

    def reducescatter_into(self, out: Array, array: Array, lengths: Sequence[int], reduction: Reduction) -> None:
        assert self._cross
        self._cross.reducescatter(array, lengths, reduction, out)

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, offsets: Sequence[int] = ()
    ) -> Traffic:
        """Each rank reduces its part, of arrays in shared memory or where they are."""
        offsets = offsets or self._in_fusion_buffers(array)
        if not offsets and self.spares(array.nbytes):
            self.reducescatter_into(part(array, lengths, self._rank), array, lengths, reduction)
            return Traffic()
        if not offsets or self._size == 1:
            return self._flat.reducescatter(array, lengths, reduction)
        start = sum(lengths[: self._rank])
        reduce_into(part(array, lengths, self._rank), self._arrays(array, offsets), start, reduction)
        self._barrier()
        return Traffic()

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """Each rank copies its part to the stage, and all others from there; or they read it in its memory."""
        if self._cross and array.nbytes > _PUBLISHED_BYTES:
            self._gather(array.nbytes, array, lengths)
        else:
            self._gather_staged(array, lengths)
        return Traffic()

    def broadcast(self, array: Array, root: int, source: Array | None = None) -> Traffic:
        """The root copies to the stage, and all others from there; or they read it in its memory."""
        if self._size == 1:
            return self._flat.broadcast(array, root, source)
        if self._cross and array.nbytes > _PUBLISHED_BYTES:
            self._copy(array.nbytes, array, root, source)
        else:
            self._copy_staged(array, root, source)
        return Traffic()

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """Each rank reads its parts in the others' memory."""
        if not self._cross or self._size == 1:
            return self._flat.alltoall(send, send_lengths, recv, recv_lengths)
        self._cross.alltoall(send, send_lengths, recv, recv_lengths)
        return Traffic()

    # --- algorithms ---------------------------------------------------------------------------------

    def _in_place(self, array: Array, reduction: Reduction, offsets: Sequence[int]) -> None:
        start, stop = self._chunk(len(array))
        reduce_across(self._arrays(array, offsets), start, stop, reduction)
        self._barrier()

    def _staged(self, array: Array, reduction: Reduction, source: Array) -> None:
        self._stage.allreduce([array], reduction, [source])

    def _gather_staged(self, array: Array, lengths: Sequence[int]) -> None:
        parts, step = cut(array, lengths), SEGMENT_BYTES // array.itemsize
        for low in range(0, max(lengths, default=0), step):
            self._publish([part[low : low + step] for part in parts])

    def _copy_staged(self, array: Array, root: int, source: Array | None) -> None:
        step = SEGMENT_BYTES // array.itemsize
        given = array if source is None else source
        for low in range(0, len(array), step):
            mine, piece = array[low : low + step], given[low : low + step]
            stage = self._stage.next_slot()[root][: mine.nbytes].view(mine.dtype)
            if self._rank == root:
                stage[...] = piece
            self._barrier()
            if self._rank != root:
                mine[...] = stage
            elif source is not None:
                mine[...] = piece

    def _short(self, array: Array, reduction: Reduction, source: Array) -> None:
        stages = [stage[: array.nbytes].view(array.dtype) for stage in self._stage.next_slot()]
        stages[self._rank][...] = source
        self._barrier()
        fold(stages, reduction, array)

    def _publish(self, pieces: Sequence[Array]) -> None:
        """Give one's own piece to all, and get theirs."""
        stages = [
            stage[: piece.nbytes].view(piece.dtype)
            for stage, piece in zip(self._stage.next_slot(), pieces, strict=True)
        ]
        stages[self._rank][...] = pieces[self._rank]
        self._barrier()
        for rank, (piece, stage) in enumerate(zip(pieces, stages, strict=True)):
            if rank != self._rank:
                piece[...] = stage

    # --- memory -------------------------------------------------------------------------------------

    def _in_fusion_buffers(self, array: Array) -> Sequence[int]:
        """Where every rank has it, if this rank has it there, and each has filled its own; else nothing."""
        if (offset := self._node.offset(array)) not in self._fusion:
            return ()
        self._barrier()
        return [offset] * self._size

    def _arrays(self, array: Array, offsets: Sequence[int]) -> list[Array]:
        return [self._node.array(member, offset, array) for member, offset in zip(self._members, offsets, strict=True)]

    def _chunk(self, length: int) -> tuple[int, int]:
        lengths = chunk_lengths(length, self._size)
        start = sum(lengths[: self._rank])
        return start, start + lengths[self._rank]

    def _barrier(self) -> None:
        self._node.barrier(self._members)
