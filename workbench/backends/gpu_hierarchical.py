"""GPUs of several machines: reduce inside each machine first, over NVLink, then across.

An allreduce of K bytes on m machines with g GPUs each: a reduce-scatter inside the machine leaves each GPU K/g bytes;
the g GPUs with one local rank reduce theirs across machines, all g groups side by side, each through a network card of
its own where there is one; an allgather inside the machine ends it. Through the network of a machine go 2(m - 1)/m · K
bytes, as in a ring of all ranks, but in 2(m - 1) steps of the network instead of 2(mg - 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workbench.backends.base import Array, Backend, Reduction, Traffic
from workbench.backends.flat import FlatWay
from workbench.collectives.ring import chunk_lengths


class GpuHierarchicalBackend(FlatWay):
    """See :class:`workbench.backends.base.Backend`. Only allreduce takes two levels; all else goes the flat way.

    Args:
        flat: connects all ranks.
        inside: connects the ranks of this machine.
        across: connects the ranks with this local rank; as many in every machine.
    """

    def __init__(self, flat: Backend, inside: Backend, across: Backend) -> None:
        super().__init__(flat, f"{flat.name}×2")
        self.inside, self.across = inside, across

    def within(self, host: Backend, ranks: Sequence[int]) -> Backend:
        """A process set goes the flat way."""
        return self.beneath.within(host, ranks)  # type: ignore[attr-defined, no-any-return]

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """Inside, across, inside; the same bits on every rank."""
        if reduction.op == "adasum":
            return self.beneath.allreduce(array, reduction)
        lengths = chunk_lengths(len(array), self.inside.size)
        traffic = self.inside.reducescatter(array, lengths, replace(reduction, postscale=1.0, divisor=1))
        start = sum(lengths[: self.inside.rank])
        mine = array[start : start + lengths[self.inside.rank]]
        traffic += self.across.allreduce(mine, replace(reduction, prescale=1.0))
        return traffic + self.inside.allgather(array, lengths)
