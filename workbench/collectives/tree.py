"""Binomial tree: the number of ranks that have the data doubles in every round."""

from __future__ import annotations

from workbench.collectives.traffic import Array, Link, Traffic


def tree_broadcast(link: Link, array: Array, root: int = 0) -> Traffic:
    """Copy ``array`` from ``root`` to all ranks, in place.

    Ranks are renumbered so that the root is 0. In the round with distance d = 1, 2, 4, …, the ranks below
    d have the data and rank i sends it to i + d. After ceil(log2 n) rounds all have it; n - 1 messages of K
    bytes in all, at most ceil(log2 n) of them from one rank.

    Args:
        link: the way to the other ranks.
        array: one-dimensional and contiguous, the same length and dtype on every rank.
        root: the rank that has the data.

    Returns:
        What this rank sent.

    Example:
        >>> import numpy as np
        >>> from workbench.transport.host.threads import spawn
        >>> def receive(link):
        ...     array = np.arange(2) if link.rank == 1 else np.zeros(2, int)
        ...     tree_broadcast(link, array, root=1)
        ...     return array.tolist()
        >>> spawn(3, receive)
        [[0, 1], [0, 1], [0, 1]]
    """
    n, traffic = link.size, Traffic()
    me = (link.rank - root) % n
    distance = 1
    while distance < n:
        if me < distance and me + distance < n:
            child = (me + distance + root) % n
            link.sendrecv(array, child, None, child)
            traffic.sent(array)
        elif distance <= me < 2 * distance:
            parent = (me - distance + root) % n
            link.sendrecv(None, parent, array, parent)
        distance *= 2
    return traffic
