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
class _OnHosts:
    """An allreduce as :func:`workbench.collectives.ring.ring_allreduce`, on hosts of equal size.

    Args:
        per_host: ranks of each host, which follow each other.

    Example:
        >>> import numpy as np
        >>> from workbench.transport.host.threads import spawn
        >>> def total(link, reduce):
        ...     array = np.full(5, float(link.rank))
        ...     reduce(link, array, np.add)
        ...     return array.tolist()
        >>> spawn(4, lambda link: total(link, TwoLevels(per_host=2)))[3]
        [6.0, 6.0, 6.0, 6.0, 6.0]
        >>> spawn(4, lambda link: total(link, Leaders(per_host=2)))[3]
        [6.0, 6.0, 6.0, 6.0, 6.0]
    """

    per_host: int

    def __call__(self, link: Link, array: Array, combine: Any) -> None:
        """Reduce in place.

        Raises:
            ValueError: the ranks do not fill the hosts.
        """
        inside = _host(link, self.per_host)
        lengths = chunk_lengths(len(array), self.per_host)
        ring_reduce_scatter(inside, array, lengths, combine)
        self._between(link, inside, array, lengths, combine)
        ring_allgather(inside, array, lengths)

    def _between(self, link: Link, inside: _Part, array: Array, lengths: Sequence[int], combine: Any) -> None:
        """Reduce this rank's part over the hosts."""
        raise NotImplementedError


class TwoLevels(_OnHosts):
    """Each rank talks to those of its place on other hosts."""

    def _between(self, link: Link, inside: _Part, array: Array, lengths: Sequence[int], combine: Any) -> None:
        between = _Part(link, range(inside.rank, link.size, self.per_host))
        ring_allreduce(between, part(array, lengths, inside.rank), combine)


class Leaders(_OnHosts):
    """One rank of each host, its leader, sends to other hosts.

    A host's wire carries 2(m - 1)/m · K bytes for m hosts, in 2(m - 1) messages. Each of the four levels inside takes
    (p - 1)/p · K bytes for p ranks a host.
    """

    def _between(self, link: Link, inside: _Part, array: Array, lengths: Sequence[int], combine: Any) -> None:
        if inside.rank:
            inside.sendrecv(part(array, lengths, inside.rank), 0, None, 0)
            inside.sendrecv(None, 0, part(array, lengths, inside.rank), 0)
        else:
            for other in range(1, self.per_host):
                inside.sendrecv(None, other, part(array, lengths, other), other)
            ring_allreduce(_Part(link, range(0, link.size, self.per_host)), array, combine)
            for other in range(1, self.per_host):
                inside.sendrecv(part(array, lengths, other), other, None, other)


def _host(link: Link, per_host: int) -> _Part:
    """The ranks of this rank's host."""
    if link.size % per_host:
        raise ValueError(f"{link.size} ranks do not fill hosts of {per_host}.")
    first = link.rank - link.rank % per_host
    return _Part(link, range(first, first + per_host))


class _Part:
    """A link among some of the ranks."""

    def __init__(self, link: Link, ranks: Sequence[int]) -> None:
        self._link, self._ranks = link, ranks
        self.rank, self.size = ranks.index(link.rank), len(ranks)

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        self._link.sendrecv(send, self._ranks[dest], recv, self._ranks[source])
