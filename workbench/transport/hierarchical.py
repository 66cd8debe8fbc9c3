"""Several machines: shared memory inside each, and one rank of each machine in a ring between them.

An allreduce of K bytes on m machines:

1. The ranks of each machine reduce in their shared memory; nothing is sent.
2. The first rank of each machine reduces with the others of its kind, in a ring: 2(m - 1)/m · K bytes through each
   machine's network card, however many ranks it has. A ring of all ranks sends as much between two machines, but in
   2(n - 1) steps instead of 2(m - 1), each of which waits for the network.
3. It passes the result on to the other ranks of its machine, in shared memory.

Short arrays, for which the steps inside the machine cost more than they save, and all other verbs, are left to the
*flat* backend, which connects all ranks in one level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workbench.transport.base import Array, Backend, Collectives, Reduction, SharedMemory, Traffic
from workbench.transport.shm.backend import shm_backend, shm_life
from workbench.transport.shm.node import Node


def hierarchical_backend(
    flat: Backend, nodes: Sequence[str], node: Node, fusion_bytes: int, least_bytes: int = 0
) -> Backend:
    """The backend of all ranks in two levels.

    Args:
        flat: connects all ranks.
        nodes: for each rank the name of its machine.
        node: the ranks of this machine.
        fusion_bytes: size of the fusion buffer.
        least_bytes: shorter arrays are reduced flat; ``benchmarks/hierarchical.py`` measures from where on it pays.
    """
    here = [rank for rank, name in enumerate(nodes) if name == nodes[flat.rank]]
    leaders = [nodes.index(name) for name in dict.fromkeys(nodes)]
    inside = shm_backend(flat.life.subset(here), node, fusion_bytes)
    across = flat.life.subset(leaders).collectives if flat.rank in leaders else None

    def subset(ranks: Sequence[int]) -> Backend:
        """Shared memory if all of them are on this machine; else flat."""
        return inside.life.subset(ranks) if set(ranks) <= set(here) else flat.life.subset(ranks)

    return replace(
        flat,
        name=f"{flat.name}+SHM",
        collectives=HierarchicalCollectives(flat.collectives, inside, across, least_bytes),
        shared=MachineMemory(inside.shared, flat.shared),
        life=shm_life(node, flat.life, subset, node.close),
    )


class HierarchicalCollectives:
    """See :class:`workbench.transport.base.Collectives`.

    Args:
        flat: of all ranks.
        inside: of this machine's ranks.
        across: of the first ranks of all machines, if this is one of them.
        least_bytes: see :func:`hierarchical_backend`.
    """

    def __init__(self, flat: Collectives, inside: Backend, across: Collectives | None, least_bytes: int) -> None:
        self._flat, self._inside, self._across, self._least_bytes = flat, inside, across, least_bytes
        self.allgather, self.broadcast, self.alltoall = flat.allgather, flat.broadcast, flat.alltoall
        self.reducescatter = flat.reducescatter

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """Inside the machine, between machines, inside the machine; the same bits on every rank."""
        if array.nbytes < self._least_bytes or reduction.op == "adasum":
            return self._flat.allreduce(array, reduction)
        inside, partial = self._inside.collectives, replace(reduction, postscale=1.0, divisor=1)
        traffic = inside.allreduce(array, partial, [places[rank] for rank in self._inside.ranks] if places else ())
        if self._across:
            traffic += self._across.allreduce(array, replace(reduction, prescale=1.0))
        return traffic + inside.broadcast(array, 0)


class MachineMemory:
    """Memory of one machine among several: reduced in place there, but not reached by all ranks.

    See :class:`workbench.transport.base.SharedMemory`.
    """

    def __init__(self, machine: SharedMemory, flat: SharedMemory) -> None:
        self.allocate, self.buffer, self.place = machine.allocate, machine.buffer, machine.place
        self.offer, self.reach, self.addresses = flat.offer, flat.reach, machine.addresses
