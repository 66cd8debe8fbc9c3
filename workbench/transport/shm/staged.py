"""Allreduce over the stage, of one array or of many: none of them has to be in shared memory, or packed.

All arrays are thought of as one, one behind the other, and cut into *segments* that stay in the cache. Each rank copies
its segment to its stage, reduces its chunk of the segment in all stages, and copies its stage back; there is a barrier
after the first step and one after the second. Per rank 2K bytes are copied, and K read and K written to reduce.

To pack many arrays into a buffer and to unpack them does the same in one segment that stays in no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle

from workbench.collectives.ring import chunk_lengths
from workbench.collectives.shared_memory import reduce_across
from workbench.core.backend.base import Array, Reduction
from workbench.transport.shm.node import Node

Piece = tuple[int, int, int, int, int]
"""Of an array: its number, from where to where in it, and from where to where in the segment."""

SEGMENT_BYTES = 1 << 20  # 2 MiB are slower, with four ranks on two cores by up to a quarter
SLOTS = 2  # of the stage; one is filled while others may still read the one before
STAGE_BYTES = SLOTS * SEGMENT_BYTES


@lru_cache(maxsize=64)
def segments(lengths: tuple[int, ...], longest: int) -> list[list[Piece]]:
    """The pieces of each segment.

    Args:
        lengths: of the arrays.
        longest: a segment's elements.

    Example:
        >>> segments((3, 3), longest=4)
        [[(0, 0, 3, 0, 3), (1, 0, 1, 3, 4)], [(1, 1, 3, 0, 2)]]
    """
    found: list[list[Piece]] = []
    end = longest
    for number, length in enumerate(lengths):
        at = 0
        while at < length:
            if end == longest:
                found.append([])
                end = 0
            step = min(length - at, longest - end)
            found[-1].append((number, at, at + step, end, end + step))
            at, end = at + step, end + step
    return found


class Staged:
    """The stage of some ranks of a machine.

    Args:
        node, members, offsets: the ranks; by member, where its stage begins in its arena.
    """

    def __init__(self, node: Node, members: Sequence[int], offsets: Sequence[int]) -> None:
        self._node, self._members = node, members
        self._rank, self._size = members.index(node.rank), len(members)
        self._slots = cycle(
            [node.bytes(member, offset + slot, SEGMENT_BYTES) for member, offset in zip(members, offsets, strict=True)]
            for slot in range(0, STAGE_BYTES, SEGMENT_BYTES)
        )

    def allreduce(self, arrays: Sequence[Array], reduction: Reduction, sources: Sequence[Array]) -> None:
        """Reduce ``sources`` into ``arrays``, which may be the same; all are one-dimensional and of one dtype."""
        dtype = arrays[0].dtype
        for pieces in segments(tuple(map(len, arrays)), SEGMENT_BYTES // dtype.itemsize):
            stages = [stage.view(dtype)[: pieces[-1][4]] for stage in self.next_slot()]
            self._copy_in(sources, pieces, stages[self._rank])
            self._node.barrier(self._members)
            self._reduce(stages, reduction)
            self._node.barrier(self._members)
            self._copy_out(arrays, pieces, stages[self._rank])

    def next_slot(self) -> list[Array]:
        """The bytes of a slot that nobody reads or writes any more, by member."""
        return next(self._slots)

    def _copy_in(self, arrays: Sequence[Array], pieces: list[Piece], mine: Array) -> None:
        for number, low, high, start, end in pieces:
            mine[start:end] = arrays[number][low:high]

    def _reduce(self, stages: list[Array], reduction: Reduction) -> None:
        lengths = chunk_lengths(len(stages[0]), self._size)
        start = sum(lengths[: self._rank])
        reduce_across(stages, start, start + lengths[self._rank], reduction)

    def _copy_out(self, arrays: Sequence[Array], pieces: list[Piece], mine: Array) -> None:
        for number, low, high, start, end in pieces:
            arrays[number][low:high] = mine[start:end]
