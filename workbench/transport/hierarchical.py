"""Several machines: shared memory inside each, and one rank of each machine, its leader, between them.

Allreduce and broadcast have two levels (``two_levels.py``), and so has allgather where each machine's ranks follow one
another. What the two levels save, on m machines with n ranks: 2(m - 1)/m · K bytes leave each in 2(m - 1) steps, where
a ring of all ranks sends 2(n - 1)/n · K from each in 2(n - 1) steps, and a tree sends its K bytes several times.

Short arrays, for which the steps inside the machine cost more than they save, and the other verbs are left to the
*flat* backend, which connects all ranks in one level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from workbench.collectives import ring_allgather
from workbench.config import Settings
from workbench.core.backend.base import Array, Backend, Collectives, Reduction, Traffic
from workbench.errors import LaunchError
from workbench.transport.links import SubLink
from workbench.transport.shm.backend import fusion_offsets, shm_backend, shm_life
from workbench.transport.shm.node import Node
from workbench.transport.two_levels import TwoLevelCollectives

WIRES = ("", "float16", "bfloat16")


def hierarchical_backend(flat: Backend, nodes: Sequence[str], node: Node, settings: Settings) -> Backend:
    """The backend of all ranks in two levels.

    Args:
        flat: connects all ranks.
        nodes: for each rank the name of its machine.
        node: the ranks of this machine.
        settings: ``fusion_threshold_bytes``, ``hierarchical_bytes`` and ``wire`` are used.

    Raises:
        LaunchError: a setting has a value that is not known.
    """
    if settings.wire not in WIRES:
        raise LaunchError(f"WORKBENCH_WIRE={settings.wire!r}: choose float16 or bfloat16, or unset it.")
    machines = MachineMap(nodes, flat.rank)
    inside = shm_backend(flat.life.subset(machines.here), node, settings.fusion_threshold_bytes)
    assert flat.link
    link = SubLink(flat.link, machines.leaders) if flat.rank in machines.leaders else None
    levels = TwoLevelCollectives(node, link, len(machines.leaders), settings.wire)

    def subset(ranks: Sequence[int]) -> Backend:
        """Shared memory if all of them are on this machine; else flat."""
        return inside.life.subset(ranks) if set(ranks) <= set(machines.here) else flat.life.subset(ranks)

    fusion = fusion_offsets(settings.fusion_threshold_bytes)
    collectives = HierarchicalCollectives(
        flat.collectives, inside, levels, machines, fusion, settings.hierarchical_bytes
    )
    return replace(
        flat,
        name=f"{flat.name}+SHM",
        collectives=collectives,
        levels=collectives,
        shared=inside.shared,  # of one machine: reduced in place there
        life=shm_life(node, flat.life, subset, node.close),
    )


class MachineMap:
    """Which rank is on which machine.

    Args:
        nodes: by rank, the name of its machine.
        rank: this one.

    Attributes:
        names: of the machines, in the order of their leaders.
        leaders: the first rank of each.
        here: the ranks of this machine.
        number: of this machine.
        in_a_row: do the ranks of each machine follow one another?

    Example:
        >>> machines = MachineMap(["a", "a", "b", "b"], rank=3)
        >>> machines.leaders, machines.here, machines.number, machines.lengths([1, 2, 3, 4])
        ([0, 2], [2, 3], 1, [3, 7])
    """

    def __init__(self, nodes: Sequence[str], rank: int) -> None:
        self.names = list(dict.fromkeys(nodes))
        self.leaders = [nodes.index(name) for name in self.names]
        self.here = [other for other, name in enumerate(nodes) if name == nodes[rank]]
        self.number = self.names.index(nodes[rank])
        self.in_a_row = sum(a != b for a, b in pairwise(nodes)) == len(self.names) - 1
        self._numbers = [self.names.index(name) for name in nodes]

    def of(self, rank: int) -> int:
        """The number of a rank's machine."""
        return self._numbers[rank]

    def lengths(self, lengths: Sequence[int]) -> list[int]:
        """By machine, what its ranks' lengths add up to."""
        sums = [0] * len(self.names)
        for number, length in zip(self._numbers, lengths, strict=True):
            sums[number] += length
        return sums


class HierarchicalCollectives:
    """See :class:`workbench.core.backend.base.Collectives`.

    Args:
        flat: of all ranks.
        inside: of this machine's ranks.
        levels: the two levels.
        machines: who is where.
        fusion: the offsets of the fusion buffer, the same in every rank's memory.
        least_bytes: shorter arrays are left to ``flat``; ``benchmarks/hierarchical.py`` measures from where on two
            levels pay.

    Attributes:
        on: False: so is every allreduce; see :class:`workbench.core.backend.base.Levels`.
    """

    def __init__(
        self,
        flat: Collectives,
        inside: Backend,
        levels: TwoLevelCollectives,
        machines: MachineMap,
        fusion: range,
        least_bytes: int = 0,
    ) -> None:
        self._flat, self._inside, self._levels, self._machines = flat, inside, levels, machines
        self._fusion, self._least_bytes, self.on = fusion, least_bytes, True
        self.alltoall, self.reducescatter = flat.alltoall, flat.reducescatter

    def allreduce(
        self, array: Array, reduction: Reduction, offsets: Sequence[int] = (), source: Array | None = None
    ) -> Traffic:
        """Inside the machine, between machines, inside the machine; the same bits on every rank."""
        if not self.on or array.nbytes < self._least_bytes or reduction.op == "adasum":
            return self._flat.allreduce(array, reduction, offsets, source)
        here = [offsets[rank] for rank in self._machines.here] if offsets else []
        if not offsets and (offset := self._inside.shared.offset(array)) in self._fusion:
            here = [offset] * self._inside.size
        return self._levels.allreduce(array, reduction, here, array if source is None else source)

    def broadcast(self, array: Array, root: int, source: Array | None = None) -> Traffic:
        """From the root's machine to the next, and so on."""
        if array.nbytes < self._least_bytes:
            return self._flat.broadcast(array, root, source)
        here, machines = self._machines.here, self._machines
        hop = (machines.number - machines.of(root)) % len(machines.leaders)
        return self._levels.broadcast(array, here.index(root) if root in here else -1, hop, source)

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """Each machine's part is put together there, and goes round the ring of machines."""
        if array.nbytes < self._least_bytes or not self._machines.in_a_row:
            return self._flat.allgather(array, lengths)
        here, by_machine = self._machines.here, self._machines.lengths(lengths)
        start = sum(by_machine[: self._machines.number])
        part = array[start : start + by_machine[self._machines.number]]
        traffic = self._inside.collectives.allgather(part, [lengths[rank] for rank in here])
        if self._levels.link:
            traffic += ring_allgather(self._levels.link, array, by_machine)
        return traffic + self._inside.collectives.broadcast(array, 0)
