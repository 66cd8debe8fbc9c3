"""Allreduce over the stage, of one array or of many: none of them has to be in shared memory, or packed.

All arrays are thought of as one, one behind the other, and cut into *segments* that stay in the cache; each segment has
a chunk for every rank. Three steps, in a pipeline with one barrier per segment: while segment k is copied to the stage,
k - 1 is reduced and k - 2 copied back. A rank's own chunk is not copied to the stage, for only this rank reads it. Per
rank 2(n - 1)/n · K bytes are copied, and K/n more are the results.

To pack many arrays into a buffer and to unpack them copies 2K, and reads and writes K more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle

from workbench.collectives.reduction import fold
from workbench.collectives.ring import chunk_lengths
from workbench.core.backend.base import Array, Reduction
from workbench.transport.shm.node import Node

Piece = tuple[int, int, int, int, int]
"""Of an array: its number, from where to where in it, and from where to where in the segment."""

SEGMENT_BYTES = 512 << 10  # benchmarks/collectives.py: 256 KiB and 1 MiB are slower by up to a quarter
SLOTS = 3  # of the stage; one is filled while the one before is reduced and the one before that is read
STAGE_BYTES = SLOTS * SEGMENT_BYTES


@lru_cache(maxsize=64)
def segments(lengths: tuple[int, ...], n: int, longest: int) -> list[list[list[Piece]]]:
    """For each segment, and each rank's chunk of it: the pieces.

    Args:
        lengths: of the arrays.
        n: ranks.
        longest: a segment's elements.

    Example:
        >>> segments((3, 3), n=2, longest=4)
        [[[(0, 0, 2, 0, 2)], [(0, 2, 3, 2, 3), (1, 0, 1, 3, 4)]], [[(1, 1, 2, 0, 1)], [(1, 2, 3, 1, 2)]]]
    """
    pieces, number, at = list[list[list[Piece]]](), 0, 0  # so far; the array, and where in it
    for low in range(0, sum(lengths), longest):
        pieces.append([])
        offset = 0
        for length in chunk_lengths(min(longest, sum(lengths) - low), n):
            chunk, end = list[Piece](), offset + length
            while offset < end:
                if at == lengths[number]:
                    number, at = number + 1, 0
                    continue
                step = min(lengths[number] - at, end - offset)
                chunk.append((number, at, at + step, offset, offset + step))
                at, offset = at + step, offset + step
            pieces[-1].append(chunk)
    return pieces


class Staged:
    """The stage of some ranks of a machine.

    Args:
        node, members, offsets: the ranks; by member, where its stage begins in its arena.
    """

    def __init__(self, node: Node, members: Sequence[int], offsets: Sequence[int]) -> None:
        self._node, self._members, self._offsets = node, members, offsets
        self._rank, self._size = members.index(node.rank), len(members)
        self._slots = cycle(range(0, STAGE_BYTES, SEGMENT_BYTES))

    def allreduce(self, arrays: Sequence[Array], reduction: Reduction) -> None:
        """Reduce all of them in place; they are one-dimensional and of one dtype."""
        dtype = arrays[0].dtype
        plan = segments(tuple(map(len, arrays)), self._size, SEGMENT_BYTES // dtype.itemsize)
        stages = [[stage.view(dtype) for stage in self.next_slot()] for _ in plan]
        for k in range(len(plan) + 2):
            if k < len(plan):
                self._copy_in(arrays, plan[k], stages[k])
            if 0 < k <= len(plan):
                self._reduce(arrays, plan[k - 1], stages[k - 1], reduction)
            if k > 1:
                self._copy_out(arrays, plan[k - 2], stages[k - 2])
            if k <= len(plan):
                self._node.barrier(self._members)

    def next_slot(self) -> list[Array]:
        """The bytes of a slot that nobody reads or writes any more, by member."""
        slot = next(self._slots)
        return [
            self._node.bytes(member, offset + slot, SEGMENT_BYTES)
            for member, offset in zip(self._members, self._offsets, strict=True)
        ]

    def _copy_in(self, arrays: Sequence[Array], chunks: list[list[Piece]], stages: list[Array]) -> None:
        mine = stages[self._rank]
        for rank, chunk in enumerate(chunks):
            if rank != self._rank:
                for number, low, high, start, end in chunk:
                    mine[start:end] = arrays[number][low:high]

    def _reduce(
        self, arrays: Sequence[Array], chunks: list[list[Piece]], stages: list[Array], reduction: Reduction
    ) -> None:
        for number, low, high, start, end in chunks[self._rank]:
            mine, parts = arrays[number][low:high], [stage[start:end] for stage in stages]
            result, parts[self._rank] = parts[self._rank], mine
            fold(parts, reduction, result)
            mine[...] = result

    def _copy_out(self, arrays: Sequence[Array], chunks: list[list[Piece]], stages: list[Array]) -> None:
        for rank, chunk in enumerate(chunks):
            if rank != self._rank:
                for number, low, high, start, end in chunk:
                    arrays[number][low:high] = stages[rank][start:end]
