"""Collectives by reading other ranks' memory, wherever in it an array is (``process_memory.py``).

No array has to be copied to shared memory first: each rank reads its chunk from all others, block by block into its
cache, and reduces it; when all have, it reads the other chunks' results. Per rank 2(n - 1)/n · K bytes are read.

Each rank writes into its own memory only. A rank that gives up (``Node.give_up``) may use its array for something else
at once: however slow another rank is, it can but read there, and the last barrier tells it that what it read is void.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.collectives.reduction import fold
from workbench.collectives.ring import chunk_lengths, cut
from workbench.collectives.shared_memory import blocks
from workbench.core.backend.base import Array, Reduction
from workbench.transport.shm.node import Node
from workbench.transport.shm.process_memory import read


class CrossMemory:
    """The memory of some ranks of one machine.

    Args:
        node: all ranks of the machine.
        members: those that take part, by their number in ``node``.
        blocks_bytes: a block of each rank; together they stay in the cache.
    """

    def __init__(self, node: Node, members: Sequence[int], blocks_bytes: int = 512 << 10) -> None:
        self._node, self._members = node, members
        self._rank, self._size = members.index(node.rank), len(members)
        self._block_bytes = max(32 << 10, blocks_bytes // self._size)
        self._scratch = np.empty(self._size * self._block_bytes, np.uint8)

    def allreduce(self, array: Array, reduction: Reduction, source: Array) -> None:
        """Each rank reduces its chunk of ``source`` for all; the values are added in the order of the ranks."""
        lengths = chunk_lengths(len(array), self._size)
        self._reduce(source, lengths, self._addresses(source), reduction, cut(array, lengths)[self._rank])
        self._gather(array, lengths, self._addresses(array))

    def reducescatter(self, array: Array, lengths: Sequence[int], reduction: Reduction, out: Array) -> None:
        """Each rank reduces its part for itself, into ``out``. Per rank (n - 1)/n · K bytes are read."""
        self._reduce(array, lengths, self._addresses(array), reduction, out)

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> None:
        """Each rank looks up where the others have its part, and reads it. Per rank (n - 1)/n · K bytes are read."""
        starts = np.cumsum([0, *send_lengths[:-1]], dtype=np.int64)
        where = send.ctypes.data + send.itemsize * starts  # of the part for each rank; the others read it
        tables, found = self._addresses(where), np.empty(1, np.int64)
        for rank, (mine, part) in enumerate(zip(cut(send, send_lengths), cut(recv, recv_lengths), strict=True)):
            if rank == self._rank:
                part[...] = mine
            elif len(part):
                read(self._pid(rank), tables[rank] + 8 * self._rank, found)
                read(self._pid(rank), int(found[0]), part)
        self._node.barrier(self._members)

    def _reduce(
        self, array: Array, lengths: Sequence[int], addresses: Sequence[int], reduction: Reduction, out: Array
    ) -> None:
        start = sum(lengths[: self._rank])
        for low, high in blocks(start, start + lengths[self._rank], array.itemsize, self._block_bytes):
            mine, at = array[low:high], low * array.itemsize
            parts = [self._part(rank, mine) for rank in range(self._size)]
            for rank in self._others():
                read(self._pid(rank), addresses[rank] + at, parts[rank])
            fold(parts, reduction, out[low - start : high - start])
        self._node.barrier(self._members)

    def allgather(self, array: Array, lengths: Sequence[int]) -> None:
        """Each rank reads the parts of all others where they are to be."""
        self._gather(array, lengths, self._addresses(array))

    def _gather(self, array: Array, lengths: Sequence[int], addresses: Sequence[int]) -> None:
        start = 0
        for rank, part in enumerate(cut(array, lengths)):
            if rank != self._rank and len(part):
                read(self._pid(rank), addresses[rank] + start, part)
            start += part.nbytes
        self._node.barrier(self._members)

    def broadcast(self, array: Array, root: int, source: Array | None = None) -> None:
        """Each rank reads the root's array; or its ``source``, which it copies meanwhile."""
        addresses = self._addresses(array if source is None else source)
        if self._rank != root:
            read(self._pid(root), addresses[root], array)
        elif source is not None:
            array[...] = source
        self._node.barrier(self._members)

    def _addresses(self, array: Array) -> list[int]:
        return self._node.allgather(self._members, array.ctypes.data)

    def _others(self) -> list[int]:
        return [rank for rank in range(self._size) if rank != self._rank]

    def _pid(self, rank: int) -> int:
        return self._node.pids[self._members[rank]]

    def _part(self, rank: int, mine: Array) -> Array:
        if rank == self._rank:
            return mine
        return self._scratch[rank * self._block_bytes :][: mine.nbytes].view(mine.dtype)
