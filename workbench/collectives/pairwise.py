"""Pairwise exchange: in step s rank r sends to rank r + s, so each rank receives from one rank at a time."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.collectives.ring import cut
from workbench.collectives.traffic import Array, Link, Traffic


def pairwise_alltoall(
    link: Link, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]
) -> Traffic:
    """Rank r's piece i goes to rank i's place r.

    n - 1 steps: in step s, rank r sends to r + s and receives from r - s. n - 1 messages per rank, all
    bytes of ``send`` but the rank's own piece.

    Args:
        link: the way to the other ranks.
        send, recv: one-dimensional and contiguous, of one dtype.
        send_lengths: length of the piece for each rank; adds up to ``len(send)``.
        recv_lengths: length of the piece from each rank; adds up to ``len(recv)``.

    Returns:
        What this rank sent.

    Example:
        >>> import numpy as np
        >>> from workbench.transport.host.threads import spawn
        >>> def transpose(link):
        ...     row, column = np.array([0, 1]) + 10 * link.rank, np.empty(2, int)
        ...     pairwise_alltoall(link, row, [1, 1], column, [1, 1])
        ...     return column.tolist()
        >>> spawn(2, transpose)
        [[0, 10], [1, 11]]
    """
    n, traffic = link.size, Traffic()
    pieces, places = cut(send, send_lengths), cut(recv, recv_lengths)
    places[link.rank][:] = pieces[link.rank]
    for step in range(1, n):
        right, left = (link.rank + step) % n, (link.rank - step) % n
        link.sendrecv(pieces[right], right, places[left], left)
        traffic.sent(pieces[right])
    return traffic
