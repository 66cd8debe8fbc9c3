"""Several machines: shared memory inside each, and one stream per machine between them.

An allreduce of K bytes on m machines:

1. The ranks of each machine reduce in their shared memory; nothing is sent.
2. The first rank of each machine reduces with the others of its kind, in a ring: 2(m - 1)/m · K bytes through each
   machine's network card, however many ranks it has. A ring of all ranks sends as much between two machines, but in
   2(n - 1) steps instead of 2(m - 1), each of which waits for the network.
3. It passes the result on to the other ranks of its machine, in shared memory.

Short arrays, for which the steps inside the machine cost more than they save, and all other verbs, go the way of the
backend between all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workbench.backends.base import Array, Backend, Buffer, Reduction, Traffic
from workbench.backends.flat import FlatWay
from workbench.backends.node import Node
from workbench.backends.shm import ShmBackend


class HierarchicalBackend(FlatWay):
    """See :class:`workbench.backends.base.Backend`.

    Args:
        beneath: connects all ranks; the flat way.
        nodes: for each rank the name of its machine.
        node: the ranks of this machine.
        fusion_bytes: size of the fusion buffer.
        least_bytes: shorter arrays go the flat way; ``benchmarks/hierarchical.py`` measures from where on it pays.
    """

    def __init__(
        self, beneath: Backend, nodes: Sequence[str], node: Node, fusion_bytes: int, least_bytes: int = 0
    ) -> None:
        super().__init__(beneath, f"{beneath.name}+SHM")
        self._node, self._fusion_bytes, self._least_bytes = node, fusion_bytes, least_bytes
        self._here = [rank for rank, name in enumerate(nodes) if name == nodes[beneath.rank]]
        self._local = ShmBackend(beneath.subset(self._here), node, fusion_bytes)
        leaders = [nodes.index(name) for name in dict.fromkeys(nodes)]
        self._leaders = beneath.subset(leaders) if beneath.rank in leaders else None

    def subset(self, ranks: Sequence[int]) -> Backend:
        """Shared memory if all of them are on this machine; else the flat way."""
        if set(ranks) <= set(self._here):
            members = [self._here.index(rank) for rank in ranks]
            return ShmBackend(self.beneath.subset(ranks), self._node, self._fusion_bytes, members)
        return self.beneath.subset(ranks)

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """Inside the machine, between machines, inside the machine; the same bits on every rank."""
        if array.nbytes < self._least_bytes or reduction.op == "adasum":
            return self.beneath.allreduce(array, reduction)
        inside = replace(reduction, postscale=1.0, divisor=1)
        traffic = self._local.allreduce(array, inside, [places[rank] for rank in self._here] if places else ())
        if self._leaders:
            traffic += self._leaders.allreduce(array, replace(reduction, prescale=1.0))
        return traffic + self._local.broadcast(array, 0)

    def buffer(self, nbytes: int) -> Buffer:
        """The machine's."""
        return self._local.buffer(nbytes)

    def allocate(self, nbytes: int) -> Array:
        """Memory that the ranks of the machine can reach."""
        return self._local.allocate(nbytes)

    def place(self, array: Array) -> int:
        """Where the ranks of the machine find it."""
        return self._local.place(array)

    def tick(self, function: Callable[[], None]) -> None:
        """Wherever something waits."""
        self._local.tick(function)
        super().tick(function)

    def close(self, clean: bool = True) -> None:
        """Close both."""
        self._node.close()
        super().close(clean)
