"""Any Link becomes a Backend: the algorithms of ``workbench.collectives`` over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from workbench.collectives import (
    adasum_allreduce,
    pairwise_alltoall,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    tree_broadcast,
)
from workbench.collectives.pipeline import begin
from workbench.collectives.ring import part
from workbench.core.backend.base import Array, Backend, Channel, Link, Reduction, Traffic
from workbench.core.backend.memory import HOST, PrivateMemory
from workbench.transport.life import Life


def link_backend(link: Channel, ranks: Sequence[int] | None = None) -> Backend:
    """The backend that needs nothing but a Link.

    Args:
        link: closed with the backend.
        ranks: global numbers of the ranks that it connects, if it does not connect all.
    """
    members = range(link.size) if ranks is None else ranks

    def subset(some: Sequence[int]) -> Backend:
        return link_backend(SubLink(link, [members.index(rank) for rank in some]), some)

    # Nothing to give up: where sendrecv breaks off, the Link takes back what it still waits for, if it can.
    life = Life(partial(setattr, link, "tick"), subset, link.close)
    return Backend(link.name, link.rank, members, LinkCollectives(link), PrivateMemory(), life, HOST, link)


def pieces(array: Array | None, nbytes: int) -> list[Array]:
    """An array in pieces of at most so many bytes, whole elements each; all of a shorter one, and of None nothing.

    Example:
        >>> import numpy as np
        >>> [piece.tolist() for piece in pieces(np.arange(5, dtype=np.int16), nbytes=5)]
        [[0, 1], [2, 3], [4]]
    """
    if array is None:
        return []
    if array.nbytes <= nbytes:
        return [array]
    flat, step = array.reshape(-1), max(1, nbytes // array.itemsize)
    return [flat[low : low + step] for low in range(0, len(flat), step)]


class LinkCollectives:
    """See :class:`workbench.core.backend.base.Collectives`; for arrays of any library with numpy's functions."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def allreduce(
        self, array: Array, reduction: Reduction, offsets: Sequence[int] = (), source: Array | None = None
    ) -> Traffic:
        """Ring: 2(n - 1) messages, 2(n - 1)/n · K bytes per rank; Adasum: log2 n messages of K bytes."""
        if source is not None:
            array[...] = source
        reduction.before(array)
        if reduction.op == "adasum":
            traffic = adasum_allreduce(self._link, array, reduction.dtype)
        else:
            traffic = ring_allreduce(self._link, array, reduction.combine)
        reduction.after(array)
        return traffic

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """Ring: n - 1 messages."""
        return ring_allgather(self._link, array, lengths)

    def broadcast(self, array: Array, root: int, source: Array | None = None) -> Traffic:
        """Binomial tree: ceil(log2 n) rounds."""
        if source is not None:  # what is sent is ours: after a failure the caller may write to the source at once
            array[...] = source
        return tree_broadcast(self._link, array, root)

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """Pairwise: n - 1 messages."""
        return pairwise_alltoall(self._link, send, send_lengths, recv, recv_lengths)

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, offsets: Sequence[int] = ()
    ) -> Traffic:
        """Ring: n - 1 messages."""
        reduction.before(array)
        traffic = ring_reduce_scatter(self._link, array, lengths, reduction.combine)
        reduction.after(part(array, lengths, self._link.rank))
        return traffic


class SubLink:
    """Some ranks of a Link, renumbered 0 … len(ranks) - 1: the data plane of a process set.

    It shares the Link's channels. That is safe because all ranks execute responses in one order, so
    messages between two ranks never overtake each other.
    """

    def __init__(self, link: Channel, ranks: Sequence[int]) -> None:
        self._link, self._ranks, self.name = link, list(ranks), link.name
        self.rank, self.size = self._ranks.index(link.rank), len(self._ranks)
        self.tick: Callable[[], None] = lambda: None  # never called: the Link waits, with a tick of its own

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        self._link.sendrecv(send, self._ranks[dest], recv, self._ranks[source])

    def start(self, send: Array | None, dest: int, recv: Array | None, source: int) -> Callable[[], None]:
        """As the Link's, where it can."""
        return begin(self._link, send, self._ranks[dest], recv, self._ranks[source])

    def close(self, clean: bool = True) -> None:
        """Nothing to do: the Link goes on for the other ranks."""
