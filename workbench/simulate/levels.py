"""Two levels: hosts reduce inside first, so that each byte crosses a host's wire once less often.

::

    inside     reduce-scatter over the ranks of a host: each has a part of the host's sum
    between    allreduce of that part over the hosts, among ranks with the same place on their host
    inside     allgather over the ranks of a host

:class:`TwoLevels` is this, as in ``transport/gpu/hierarchical.py``. In :class:`Leaders` one rank of each host takes the
parts together, and alone talks to other hosts, as in ``transport/two_levels.py``. There, segments overlap; here, one
level follows the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.collectives.ring import chunk_lengths, part, ring_allgather, ring_allreduce, ring_reduce_scatter
from workbench.collectives.traffic import Array, Link


@dataclass(frozen=True)
class TwoLevels:
    """An allreduce as :func:`workbench.collectives.ring.ring_allreduce`, on hosts of equal size.

    Args:
        per_host: ranks of each host, which follow each other.

    Example:
        >>> import numpy as np
        >>> from workbench.transport.host.threads import spawn
        >>> def total(link):
        ...     array = np.full(5, float(link.rank))
        ...     TwoLevels(per_host=2)(link, array, np.add)
        ...     return array.tolist()
        >>> spawn(4, total)[3]
        [6.0, 6.0, 6.0, 6.0, 6.0]
    """

    per_host: int

    def __call__(self, link: Link, array: Array, combine: Any) -> None:
        """Reduce in place.

        Raises:
            ValueError: the ranks do not fill the hosts.
        """
        inside, place = _host(link, self.per_host)
        between = _Part(link, range(place, link.size, self.per_host))
        lengths = chunk_lengths(len(array), self.per_host)
        ring_reduce_scatter(inside, array, lengths, combine)
        ring_allreduce(between, part(array, lengths, place), combine)
        ring_allgather(inside, array, lengths)


@dataclass(frozen=True)
class Leaders:
    """An allreduce in which one rank of each host, its leader, sends to other hosts.

    A host's wire carries 2(m - 1)/m · K bytes for m hosts, in 2(m - 1) messages. Each of the four levels inside takes
    (p - 1)/p · K bytes for p ranks a host.

    Args:
        per_host: ranks of each host, which follow each other.

    Example:
        >>> import numpy as np
        >>> from workbench.transport.host.threads import spawn
        >>> def total(link):
        ...     array = np.full(5, float(link.rank))
        ...     Leaders(per_host=2)(link, array, np.add)
        ...     return array.tolist()
        >>> spawn(4, total)[3]
        [6.0, 6.0, 6.0, 6.0, 6.0]
    """

    per_host: int

    def __call__(self, link: Link, array: Array, combine: Any) -> None:
        """Reduce in place.

        Raises:
            ValueError: the ranks do not fill the hosts.
        """
        inside, place = _host(link, self.per_host)
        lengths = chunk_lengths(len(array), self.per_host)
        ring_reduce_scatter(inside, array, lengths, combine)
        if place:
            inside.sendrecv(part(array, lengths, place), 0, None, 0)
            inside.sendrecv(None, 0, part(array, lengths, place), 0)
        else:
            for other in range(1, self.per_host):
                inside.sendrecv(None, other, part(array, lengths, other), other)
            ring_allreduce(_Part(link, range(0, link.size, self.per_host)), array, combine)
            for other in range(1, self.per_host):
                inside.sendrecv(part(array, lengths, other), other, None, other)
        ring_allgather(inside, array, lengths)


def _host(link: Link, per_host: int) -> tuple[_Part, int]:
    """The ranks of this rank's host, and its place among them."""
    if link.size % per_host:
        raise ValueError(f"{link.size} ranks do not fill hosts of {per_host}.")
    place = link.rank % per_host
    return _Part(link, range(link.rank - place, link.rank - place + per_host)), place


class _Part:
    """A link among some of the ranks."""

    def __init__(self, link: Link, ranks: Sequence[int]) -> None:
        self._link, self._ranks = link, ranks
        self.rank, self.size = ranks.index(link.rank), len(ranks)

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        self._link.sendrecv(send, self._ranks[dest], recv, self._ranks[source])
