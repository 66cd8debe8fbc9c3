"""Every algorithm of ``workbench/collectives``, recorded, and its time beside the formula of the books.

A message of m bytes takes M(m) = latency + 2 · overhead + m · G, and keeps its sender busy for B(m) = overhead + m · G.
With one rank on each host, K bytes on each rank, and A = seconds to combine a byte:

=================  =================================================================================================
algorithm          closed form
=================  =================================================================================================
naive allreduce    M(K) + (n - 2) · max(B(K), A · K) + A · K, then (n - 1) · B(K) + latency + overhead
ring allreduce     2(n - 1) · M(K/n) + (n - 1) · A · K/n
reduce-scatter     (n - 1) · M(K/n) + (n - 1) · A · K/n
allgather          (n - 1) · M(K/n)
alltoall           (n - 1) · M(K/n)
tree broadcast     the last rank's hops · M(K) + waits · B(K), see :func:`tree_s`
Adasum             log2(n) · M(K), recursive doubling; what it computes is not counted
servers            none for all sizes; (P + 1)/P · K · G in P pieces where only the bandwidth counts
two levels         none for all sizes; it is the ring's on one rank a host
=================  =================================================================================================

The segments of ``collectives/pipeline.py`` overlap only on links that can begin a message and go on. A recorded link
cannot, so they are not in the table; their steps and bytes are those of the ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.collectives.adasum import adasum_allreduce
from workbench.collectives.pairwise import pairwise_alltoall
from workbench.collectives.ring import (
    chunk_lengths,
    naive_allreduce,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
)
from workbench.collectives.traffic import Array, Link
from workbench.collectives.tree import tree_broadcast
from workbench.simulate.levels import TwoLevels
from workbench.simulate.machines import Machines, Wire
from workbench.simulate.schedule import Algorithm, Schedule, finish_times, record
from workbench.simulate.servers import Servers

KIB = 1 << 10
RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
SIZES = (KIB, 32 * KIB, KIB**2, 10 * KIB**2, 100 * KIB**2)


def reduce_scatter(link: Link, array: Array, combine: Any) -> None:
    """The ring's, of equal chunks."""
    ring_reduce_scatter(link, array, chunk_lengths(len(array), link.size), combine)


def allgather(link: Link, array: Array, combine: Any) -> None:
    """The ring's, of equal chunks."""
    ring_allgather(link, array, chunk_lengths(len(array), link.size))


def alltoall(link: Link, array: Array, combine: Any) -> None:
    """Pairwise, of equal pieces."""
    lengths = chunk_lengths(len(array), link.size)
    pairwise_alltoall(link, array, lengths, np.empty_like(array), lengths)


def broadcast(link: Link, array: Array, combine: Any) -> None:
    """A binomial tree from rank 0."""
    tree_broadcast(link, array)


def adasum(link: Link, array: Array, combine: Any) -> None:
    """Recursive doubling. It computes with what the link should have brought, which is whatever the memory held."""
    with np.errstate(all="ignore"):
        adasum_allreduce(link, array.astype(np.float32), "float32")


@dataclass(frozen=True)
class Formula:
    """A closed form, for machines with one rank on each host.

    Args:
        wire: between hosts.
        combine_s: to combine a byte.
    """

    wire: Wire
    combine_s: float = 0.0

    def message_s(self, nbytes: float) -> float:
        return self.wire.latency_s + self.wire.overhead_s + self.busy_s(nbytes)

    def busy_s(self, nbytes: float) -> float:
        """Until its sender goes on."""
        return self.wire.overhead_s + nbytes * self.wire.per_byte_s

    def naive_s(self, n: int, nbytes: float) -> float:
        """Naive allreduce: n - 1 arrays come in at rank 0, and are summed up; the sum goes out n - 1 times."""
        adds_s = nbytes * self.combine_s
        summed = self.message_s(nbytes) + (n - 2) * max(self.busy_s(nbytes), adds_s) + adds_s
        return summed + (n - 1) * self.busy_s(nbytes) + self.wire.latency_s + self.wire.overhead_s

    def ring_s(self, n: int, nbytes: float) -> float:
        return self.reduce_scatter_s(n, nbytes) + self.chunks_s(n, nbytes)

    def reduce_scatter_s(self, n: int, nbytes: float) -> float:
        """Half of a ring allreduce."""
        return self.chunks_s(n, nbytes) + (n - 1) * nbytes / n * self.combine_s

    def chunks_s(self, n: int, nbytes: float) -> float:
        """Allgather, and alltoall: n - 1 chunks, one after the other."""
        return (n - 1) * self.message_s(nbytes / n)

    def tree_s(self, n: int, nbytes: float) -> float:
        """Broadcast: rank r gets it after a hop for each 1 in r's binary form, and a wait for each 0 between them.

        Example:
            >>> Formula(Wire(latency_s=2.0, per_byte_s=1.0)).tree_s(n=6, nbytes=1)  # 0 → 1, wait for 1 → 3, 1 → 5
            7.0
        """
        hop_s, wait_s = self.message_s(nbytes), self.busy_s(nbytes)
        ranks = (f"{r:b}" for r in range(1, n))
        return max(form.count("1") * hop_s + form.count("0") * wait_s for form in ranks)

    def doubling_s(self, n: int, nbytes: float) -> float:
        return (n.bit_length() - 1) * self.message_s(nbytes)


@dataclass(frozen=True)
class Known:
    """An algorithm that can be recorded.

    Args:
        name: of it.
        algorithm: on so many ranks a host.
        closed_s: its formula, where there is one.
    """

    name: str
    algorithm: Callable[[int], Algorithm]
    closed_s: Callable[[Formula, int, float], float] | None = None


KNOWN = (
    Known("naive allreduce", lambda per_host: naive_allreduce, Formula.naive_s),
    Known("ring allreduce", lambda per_host: ring_allreduce, Formula.ring_s),
    Known("two levels", TwoLevels),
    Known("servers", lambda per_host: Servers()),
    Known("Adasum", lambda per_host: adasum, Formula.doubling_s),
    Known("reduce-scatter", lambda per_host: reduce_scatter, Formula.reduce_scatter_s),
    Known("allgather", lambda per_host: allgather, Formula.chunks_s),
    Known("alltoall", lambda per_host: alltoall, Formula.chunks_s),
    Known("tree broadcast", lambda per_host: broadcast, Formula.tree_s),
)


@dataclass(frozen=True)
class Time:
    """A row of the table.

    Args:
        name: of the algorithm.
        ranks: how many.
        nbytes: of each rank's array.
        seconds: until the last rank has finished, by the recorded messages.
        closed_s: by the formula; None where there is none.
    """

    name: str
    ranks: int
    nbytes: int
    seconds: float
    closed_s: float | None


@lru_cache(maxsize=128)
def _recorded(known: Known, ranks: int, per_host: int) -> Schedule:
    return record(known.algorithm(per_host), ranks)


def table(
    wire: Wire, combine_s: float = 0.0, ranks: Iterable[int] = RANKS, sizes: Iterable[int] = SIZES, per_host: int = 1
) -> list[Time]:
    """What each algorithm takes.

    Args:
        wire: between hosts; inside of them, ten times as fast.
        combine_s: to combine one byte.
        ranks, sizes: for each of these numbers of ranks, and of bytes.
        per_host: ranks of a host. The formulas are for 1.

    Example:
        >>> for row in table(Wire(2e-5, 1e-9), ranks=[8], sizes=[8000])[:2]:
        ...     print(f"{row.name:16} {row.seconds * 1e6:.0f} µs, {row.closed_s * 1e6:.0f} µs")
        naive allreduce  152 µs, 152 µs
        ring allreduce   294 µs, 294 µs
    """
    inside, formula, rows = Wire(wire.latency_s / 10, wire.per_byte_s / 10), Formula(wire, combine_s), list[Time]()
    for n in ranks:
        machines = Machines(max(1, n // per_host), min(n, per_host), inside, wire, combine_s)
        for known in KNOWN:
            schedule = _recorded(known, n, machines.per_host)
            for nbytes in sizes:
                seconds = float(finish_times(schedule, nbytes, machines).max())
                closed_s = known.closed_s(formula, n, nbytes) if known.closed_s and per_host == 1 else None
                rows.append(Time(known.name, n, nbytes, seconds, closed_s))
    return rows
