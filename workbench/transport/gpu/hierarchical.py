"""GPUs of several machines: reduce inside each machine first, over NVLink, then across.

An allreduce of K bytes on m machines with g GPUs each: a reduce-scatter inside the machine leaves each GPU K/g bytes;
the g GPUs with one local rank reduce theirs across machines, all g groups side by side, each through a network card of
its own where there is one; an allgather inside the machine ends it. Through the network of a machine go 2(m - 1)/m · K
bytes, as in a ring of all ranks, but in 2(m - 1) steps of the network instead of 2(mg - 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workbench.collectives.ring import chunk_lengths, part
from workbench.core.backend.base import Array, Backend, Collectives, Reduction, Traffic


class GpuHierarchicalCollectives:
    """See :class:`workbench.core.backend.base.Collectives`. Only allreduce has two levels.

    Args:
        flat: of all ranks.
        inside: connects the ranks of this machine.
        across: connects the ranks with this local rank; as many in every machine.
        on: False: it is left to ``flat``, too; see :class:`workbench.core.backend.base.Levels`.
    """

    def __init__(self, flat: Collectives, inside: Backend, across: Backend, on: bool = True) -> None:
        self._flat, self.inside, self.across, self.on = flat, inside, across, on
        self.allgather, self.broadcast, self.alltoall = flat.allgather, flat.broadcast, flat.alltoall
        self.reducescatter = flat.reducescatter

    def allreduce(
        self, array: Array, reduction: Reduction, offsets: Sequence[int] = (), source: Array | None = None
    ) -> Traffic:
        """Inside, across, inside; the same bits on every rank."""
        if not self.on or reduction.op == "adasum":
            return self._flat.allreduce(array, reduction, offsets, source)
        if source is not None:
            array[...] = source
        inside = self.inside.collectives
        lengths = chunk_lengths(len(array), self.inside.size)
        traffic = inside.reducescatter(array, lengths, replace(reduction, postscale=1.0, divisor=1))
        mine = part(array, lengths, self.inside.rank)
        traffic += self.across.collectives.allreduce(mine, replace(reduction, prescale=1.0))
        return traffic + inside.allgather(array, lengths)
