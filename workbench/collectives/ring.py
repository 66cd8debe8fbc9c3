"""Ring algorithms: each rank talks to its two neighbours only.

An array of K bytes is cut into n *chunks*, one per rank, whose lengths differ by one element at most.

**Reduce-scatter**, n - 1 steps: in step s, rank r sends chunk r - s to its right neighbour and adds what
comes from the left to chunk r - s - 1. A chunk grows by one contribution per step; in the end rank r
holds chunk r + 1 complete.

**Allgather**, n - 1 steps: the complete chunks go once round the ring.

**Allreduce** is both, one after the other: 2(n - 1) messages and 2(n - 1)/n · K bytes sent per rank,
which hardly grows with n; no algorithm sends less (Patarasuk and Yuan 2009). Its latency grows with n,
so it is for large arrays. Each chunk is summed up in one place and then copied, so all ranks end
with the same bits.

Every step sends a message even where the chunk is empty (fewer elements than ranks): the count of
messages is then a property of n alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from workbench.collectives.traffic import Array, Link, Traffic


class Combine(Protocol):
    """``combine(a, b, out=c)`` writes the reduction of a and b to c, element by element: ``numpy.add``."""

    def __call__(self, a: Any, b: Any, /, *, out: Any) -> Any:
        """The arrays have one length and dtype; ``out`` may be ``a``."""


def chunk_lengths(length: int, n: int) -> list[int]:
    """Lengths of n chunks; the first ``length % n`` of them get one element more.

    Example:
        >>> chunk_lengths(10, 4), chunk_lengths(2, 4)
        ([3, 3, 2, 2], [1, 1, 0, 0])
    """
    return [length // n + (i < length % n) for i in range(n)]


def cut(array: Array, lengths: Sequence[int]) -> list[Array]:
    """Views of consecutive pieces of a one-dimensional array."""
    ends = np.cumsum(lengths)
    return [array[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def part(array: Array, lengths: Sequence[int], rank: int) -> Array:
    """A view of one of the pieces that :func:`cut` makes."""
    start = sum(lengths[:rank])
    return array[start : start + lengths[rank]]


def ring_allreduce(link: Link, array: Array, combine: Combine = np.add) -> Traffic:
    """Reduce ``array`` over all ranks, in place; every rank ends with the same bits.

    Args:
        link: the way to the other ranks.
        array: one-dimensional and contiguous, any length, the same length and dtype on every rank.
        combine: associative and commutative up to rounding, as ``numpy.add`` or ``numpy.maximum``.

    Returns:
        What this rank sent: 2(n - 1) messages, 2(n - 1)/n · K bytes (± one element per chunk).

    Example:
        >>> from workbench.transport.host.threads import spawn
        >>> def sum_of_ranks(link):
        ...     array = np.full(3, float(link.rank))
        ...     ring_allreduce(link, array)
        ...     return array.tolist()
        >>> spawn(3, sum_of_ranks)
        [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
    """
    chunks = cut(array, chunk_lengths(len(array), link.size))
    scattered = _reduce_scatter(link, chunks, combine, first=link.rank)
    # Rank r now holds chunk r + 1 complete, so that is the one it passes on first.
    return scattered + _allgather(link, chunks, first=link.rank + 1)


def ring_reduce_scatter(link: Link, array: Array, lengths: Sequence[int], combine: Combine = np.add) -> Traffic:
    """Reduce ``array`` so that rank r ends with chunk r of the result; the other chunks are scratch after it.

    Args:
        link: the way to the other ranks.
        array: one-dimensional and contiguous; overwritten.
        lengths: the length of every rank's chunk; they add up to ``len(array)``.
        combine: as for :func:`ring_allreduce`.

    Returns:
        What this rank sent: n - 1 messages.
    """
    # One chunk earlier than in the allreduce, so that rank r ends with chunk r and not r + 1.
    return _reduce_scatter(link, cut(array, lengths), combine, first=link.rank - 1)


def ring_allgather(link: Link, array: Array, lengths: Sequence[int]) -> Traffic:
    """Fill ``array`` with every rank's chunk; rank r has written chunk r beforehand.

    Args:
        link: the way to the other ranks.
        array: one-dimensional and contiguous.
        lengths: the length of every rank's chunk; they add up to ``len(array)``.

    Returns:
        What this rank sent: n - 1 messages, all chunks but that of its right neighbour.
    """
    return _allgather(link, cut(array, lengths), first=link.rank)


def _reduce_scatter(link: Link, chunks: list[Array], combine: Combine, first: int) -> Traffic:
    n, traffic = link.size, Traffic()
    arrived = np.empty_like(chunks[0], shape=max(map(len, chunks)))  # where the chunks are: also on a GPU
    for step in range(n - 1):
        outgoing = chunks[(first - step) % n]
        mine = chunks[(first - step - 1) % n]
        incoming = arrived[: len(mine)]
        link.sendrecv(outgoing, (link.rank + 1) % n, incoming, (link.rank - 1) % n)
        combine(mine, incoming, out=mine)
        traffic.sent(outgoing)
    return traffic


def _allgather(link: Link, chunks: list[Array], first: int) -> Traffic:
    n, traffic = link.size, Traffic()
    for step in range(n - 1):
        outgoing = chunks[(first - step) % n]
        incoming = chunks[(first - step - 1) % n]
        link.sendrecv(outgoing, (link.rank + 1) % n, incoming, (link.rank - 1) % n)
        traffic.sent(outgoing)
    return traffic


def naive_allreduce(link: Link, array: Array, combine: Combine = np.add) -> Traffic:
    """The obvious way, for comparison: everybody sends everything to rank 0, which sends the sum back.

    Rank 0 receives and sends (n - 1) · K bytes while the others mostly wait. Use :func:`ring_allreduce`.

    Example:
        >>> from workbench.transport.host.threads import spawn
        >>> [traffic.messages for traffic in spawn(4, lambda link: naive_allreduce(link, np.ones(8)))]
        [3, 1, 1, 1]
    """
    traffic, others = Traffic(), range(1, link.size)
    if link.rank == 0:
        arrived = np.empty_like(array)
        for rank in others:
            link.sendrecv(None, rank, arrived, rank)
            combine(array, arrived, out=array)
        for rank in others:
            link.sendrecv(array, rank, None, rank)
            traffic.sent(array)
    else:
        link.sendrecv(array, 0, None, 0)
        link.sendrecv(None, 0, array, 0)
        traffic.sent(array)
    return traffic
