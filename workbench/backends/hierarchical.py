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
from workbench.backends.host_memory import HOST
from workbench.backends.node import Node
from workbench.backends.shm import ShmBackend


class HierarchicalBackend:
    """See :class:`workbench.backends.base.Backend`.

    Args:
        beneath: connects all ranks; the flat way.
        nodes: for each rank the name of its machine.
        node: the ranks of this machine.
        fusion_bytes: size of the fusion buffer.
        least_bytes: shorter arrays go the flat way; ``benchmarks/hierarchical.py`` measures from where on it pays.
    """

    memory = HOST

    def __init__(
        self, beneath: Backend, nodes: Sequence[str], node: Node, fusion_bytes: int, least_bytes: int = 0
    ) -> None:
        self.beneath, self._node, self._fusion_bytes, self._least_bytes = beneath, node, fusion_bytes, least_bytes
        self.name, self.rank, self.size = f"{beneath.name}+SHM", beneath.rank, beneath.size
        self._here = [rank for rank, name in enumerate(nodes) if name == nodes[beneath.rank]]
        self._local = ShmBackend(beneath.subset(self._here), node, fusion_bytes)
        leaders = [nodes.index(name) for name in dict.fromkeys(nodes)]
        self._leaders = beneath.subset(leaders) if beneath.rank in leaders else None

    def index(self, rank: int) -> int:
        """All ranks take part."""
        return rank

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

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """The flat way."""
        return self.beneath.allgather(array, lengths)

    def broadcast(self, array: Array, root: int) -> Traffic:
        """The flat way."""
        return self.beneath.broadcast(array, root)

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """The flat way."""
        return self.beneath.alltoall(send, send_lengths, recv, recv_lengths)

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, places: Sequence[int] = ()
    ) -> Traffic:
        """The flat way."""
        return self.beneath.reducescatter(array, lengths, reduction)

    def buffer(self, nbytes: int) -> Buffer:
        """The machine's."""
        return self._local.buffer(nbytes)

    def allocate(self, nbytes: int) -> Array:
        """Memory that the ranks of the machine can reach."""
        return self._local.allocate(nbytes)

    def place(self, array: Array) -> int:
        """Where the ranks of the machine find it."""
        return self._local.place(array)

    def offer(self, nbytes: int) -> int:
        """There is no memory that all ranks could reach."""
        return -1

    def reach(self, rank: int, place: int, nbytes: int) -> Array | None:
        """There is no memory that all ranks could reach."""
        return None

    def tick(self, function: Callable[[], None]) -> None:
        """Wherever something waits."""
        self._local.tick(function)
        self.beneath.tick(function)

    def close(self, clean: bool = True) -> None:
        """Close both."""
        self._node.close()
        self.beneath.close(clean)
