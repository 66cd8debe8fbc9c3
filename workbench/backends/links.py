"""Any Link becomes a Backend: the algorithms of ``workbench.collectives`` over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.backends.base import Array, Backend, Buffer, Link, OwnMemory, Reduction, Traffic
from workbench.backends.host_memory import HOST
from workbench.collectives import (
    adasum_allreduce,
    pairwise_alltoall,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    tree_broadcast,
)


class HeapBuffer:
    """Ordinary memory, kept and grown from batch to batch."""

    def __init__(self) -> None:
        self.array: Array = np.empty(0, np.uint8)

    def grow(self, nbytes: int) -> HeapBuffer:
        """Make room for ``nbytes`` bytes."""
        if self.array.nbytes < nbytes:
            self.array = np.empty(nbytes, np.uint8)
        return self

    def release(self) -> None:
        """Nothing to do: the next batch uses the same memory."""


class LinkBackend(OwnMemory):
    """The Backend that needs nothing but a Link; see :class:`workbench.backends.base.Backend`."""

    memory: Any = HOST

    def __init__(self, link: Link, name: str = "LINK") -> None:
        self.link, self.name = link, name
        self._buffer = HeapBuffer()

    @property
    def rank(self) -> int:
        """The Link's rank."""
        return self.link.rank

    @property
    def size(self) -> int:
        """The Link's size."""
        return self.link.size

    def index(self, rank: int) -> int:
        """All ranks take part, or those of the SubLink."""
        return self.link.ranks.index(rank) if isinstance(self.link, SubLink) else rank

    def subset(self, ranks: Sequence[int]) -> Backend:
        """Our algorithms over some of the ranks."""
        return LinkBackend(SubLink(self.link, ranks), self.name)

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """Ring: 2(n - 1) messages, 2(n - 1)/n · K bytes per rank; Adasum: log2 n messages of K bytes."""
        reduction.before(array)
        if reduction.op == "adasum":
            traffic = adasum_allreduce(self.link, array, reduction.dtype)
        else:
            traffic = self._sum(array, reduction)
        reduction.after(array)
        return traffic

    def _sum(self, array: Array, reduction: Reduction) -> Traffic:
        return ring_allreduce(self.link, array, reduction.combine)

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """Ring: n - 1 messages."""
        return ring_allgather(self.link, array, lengths)

    def broadcast(self, array: Array, root: int) -> Traffic:
        """Binomial tree: ceil(log2 n) rounds."""
        return tree_broadcast(self.link, array, root)

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """Pairwise: n - 1 messages."""
        return pairwise_alltoall(self.link, send, send_lengths, recv, recv_lengths)

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, places: Sequence[int] = ()
    ) -> Traffic:
        """Ring: n - 1 messages."""
        reduction.before(array)
        traffic = ring_reduce_scatter(self.link, array, lengths, reduction.combine)
        start = sum(lengths[: self.rank])
        reduction.after(array[start : start + lengths[self.rank]])
        return traffic

    def buffer(self, nbytes: int) -> Buffer:
        """The fusion buffer, in ordinary memory."""
        return self._buffer.grow(nbytes)

    def allocate(self, nbytes: int) -> Array:
        """Ordinary memory."""
        return np.empty(nbytes, np.uint8)

    def tick(self, function: Callable[[], None]) -> None:
        """Hand ``function`` to the Link, if it has long waits."""
        if hasattr(self.link, "tick"):
            self.link.tick = function

    def close(self, clean: bool = True) -> None:
        """Close the Link, if it can be closed."""
        close = getattr(self.link, "close", None)
        if close is not None:
            close(clean)


class SubLink:
    """Some ranks of a Link, renumbered 0 … len(ranks) - 1: the data plane of a process set.

    It shares the Link's channels. That is safe because all ranks execute responses in one order, so
    messages between two ranks never overtake each other.
    """

    def __init__(self, link: Link, ranks: Sequence[int]) -> None:
        self._link, self.ranks = link, list(ranks)
        self.rank, self.size = self.ranks.index(link.rank), len(self.ranks)

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """As the Link's, with this set's numbers."""
        self._link.sendrecv(send, self.ranks[dest], recv, self.ranks[source])
