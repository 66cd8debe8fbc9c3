"""GPUs of several machines: reduce inside each machine first, over NVLink, then across.

An allreduce of K bytes on m machines with g GPUs each: a reduce-scatter inside the machine leaves each GPU K/g bytes;
the g GPUs with one local rank reduce theirs across machines, all g groups side by side, each through a network card of
its own where there is one; an allgather inside the machine ends it. Through the network of a machine go 2(m - 1)/m · K
bytes, as in a ring of all ranks, but in 2(m - 1) steps of the network instead of 2(mg - 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workbench.backends.base import Array, Backend, Buffer, Reduction, Traffic
from workbench.collectives.ring import chunk_lengths


class GpuHierarchicalBackend:
    """See :class:`workbench.backends.base.Backend`. Only allreduce takes two levels; all else goes the flat way.

    Args:
        flat: connects all ranks.
        inside: connects the ranks of this machine.
        across: connects the ranks with this local rank; as many in every machine.
    """

    def __init__(self, flat: Backend, inside: Backend, across: Backend) -> None:
        self.flat, self.inside, self.across = flat, inside, across
        self.name, self.rank, self.size, self.memory = f"{flat.name}×2", flat.rank, flat.size, flat.memory

    def index(self, rank: int) -> int:
        """All ranks take part."""
        return rank

    def within(self, host: Backend, ranks: Sequence[int]) -> Backend:
        """A process set goes the flat way."""
        return self.flat.within(host, ranks)  # type: ignore[attr-defined, no-any-return]

    def subset(self, ranks: Sequence[int]) -> Backend:
        """As :meth:`within`."""
        return self.flat.subset(ranks)

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """Inside, across, inside; the same bits on every rank."""
        if reduction.op == "adasum":
            return self.flat.allreduce(array, reduction)
        lengths = chunk_lengths(len(array), self.inside.size)
        traffic = self.inside.reducescatter(array, lengths, replace(reduction, postscale=1.0, divisor=1))
        start = sum(lengths[: self.inside.rank])
        mine = array[start : start + lengths[self.inside.rank]]
        traffic += self.across.allreduce(mine, replace(reduction, prescale=1.0))
        return traffic + self.inside.allgather(array, lengths)

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """The flat way."""
        return self.flat.allgather(array, lengths)

    def broadcast(self, array: Array, root: int) -> Traffic:
        """The flat way."""
        return self.flat.broadcast(array, root)

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """The flat way."""
        return self.flat.alltoall(send, send_lengths, recv, recv_lengths)

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, places: Sequence[int] = ()
    ) -> Traffic:
        """The flat way."""
        return self.flat.reducescatter(array, lengths, reduction)

    def buffer(self, nbytes: int) -> Buffer:
        """The flat way's."""
        return self.flat.buffer(nbytes)

    def allocate(self, nbytes: int) -> Array:
        """The flat way's."""
        return self.flat.allocate(nbytes)

    def place(self, array: Array) -> int:
        """Nobody else can reach it."""
        return -1

    def offer(self, nbytes: int) -> int:
        """There is no memory that all ranks could reach."""
        return -1

    def reach(self, rank: int, place: int, nbytes: int) -> Array | None:
        """There is no memory that all ranks could reach."""
        return None

    def tick(self, function: Callable[[], None]) -> None:
        """The GPU is one."""
        self.flat.tick(function)

    def close(self, clean: bool = True) -> None:
        """One library made all communicators, and gives all of them back."""
        self.flat.close(clean)
