"""Nodes that are only said to be there: fast links inside, slow ones between; who has which GPU, who talks to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.course.simulator import Run
from workbench.job.context import World, place

INSIDE, BETWEEN = (5e-6, 1 / 50e9), (30e-6, 1 / 5e9)
"""α and β of a link inside a node and of one between nodes. Round figures of the model, measured nowhere."""


@dataclass(frozen=True)
class Topology:
    """Which rank is on which node; give it to ``simulate(..., link=...)``.

    Args:
        nodes: by rank, the name of its node.
        inside, between: (α, β) of the two kinds of links, in seconds per message and per byte.

    Example:
        >>> from workbench.course.simulator import simulate
        >>> two = Topology(["a", "a", "b", "b"])
        >>> two(0, 1) == INSIDE, two(1, 2) == BETWEEN
        (True, True)
        >>> run = simulate(4, lambda comm: comm.bcast(np.ones(1000)), link=two)
        >>> two.left(run)
        {'a': 16000, 'b': 0}
    """

    nodes: Sequence[str]
    inside: tuple[float, float] = INSIDE
    between: tuple[float, float] = BETWEEN

    def __call__(self, source: int, dest: int) -> tuple[float, float]:
        """α and β of the link from one rank to another."""
        return self.inside if self.nodes[source] == self.nodes[dest] else self.between

    def left(self, run: Run) -> dict[str, int]:
        """The bytes that left each node."""
        total = dict.fromkeys(self.nodes, 0)
        for one in run.messages:
            if self.nodes[one.source] != self.nodes[one.dest]:
                total[self.nodes[one.source]] += one.nbytes
        return total

    def rounds(self, run: Run) -> int:
        """The most messages that one rank sent to other nodes, one after the other."""
        out = [one.source for one in run.messages if self.nodes[one.source] != self.nodes[one.dest]]
        return max(map(out.count, out), default=0)


def ring_among(comm: Any, members: Sequence[int], x: Any) -> Any:
    """The sum of the x of some ranks, by a ring of these alone; only they call it.

    Args:
        comm: as for mpi4py.
        members: their ranks, in the ring's order, the same list on each of them.
        x: a one-dimensional array.

    Example:
        >>> from workbench.course.simulator import simulate
        >>> def of_the_even(comm):
        ...     return ring_among(comm, [0, 2], np.ones(3) * comm.rank) if comm.rank % 2 == 0 else None
        >>> simulate(4, of_the_even).results
        [array([2., 2., 2.]), None, array([2., 2., 2.]), None]
    """
    if comm.rank not in members:
        raise ValueError(f"Rank {comm.rank} is not among {list(members)}: only these call ring_among().")
    n, place = len(members), members.index(comm.rank)
    right, left = members[(place + 1) % n], members[place - 1]
    chunks = np.array_split(x.copy(), n)
    for step in range(n - 1):
        mine = (place - step - 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(chunks[(place - step) % n], dest=right, source=left)
    for step in range(n - 1):
        chunks[(place - step) % n] = comm.sendrecv(chunks[(place - step + 1) % n], dest=right, source=left)
    return np.concatenate(chunks)


def pinned(
    nodes: Sequence[str], choose: Callable[[World], int], gpus: int = 2, visible: Callable[[World], str] | None = None
) -> list[str]:
    """The GPU that each rank gets on nodes that have ``gpus`` each, or CUDA's error.

    Args:
        nodes: by rank, the name of its node.
        choose: what the rank gives to ``torch.cuda.set_device``.
        gpus: per node.
        visible: the rank's ``CUDA_VISIBLE_DEVICES``: those GPUs are all that it sees, and they are counted from 0.

    Example:
        >>> pinned(["a", "a"], lambda world: world.local_rank)
        ['GPU 0 of a', 'GPU 1 of a']
        >>> pinned(["a", "a"], lambda world: 0, visible=lambda world: str(world.local_rank))
        ['GPU 0 of a', 'GPU 1 of a']
        >>> pinned(["a", "b"], lambda world: world.rank, gpus=1)
        ['GPU 0 of a', 'invalid device ordinal']
    """
    got = []
    for rank, node in enumerate(nodes):
        world = place(list(nodes), rank)
        seen = [int(one) for one in visible(world).split(",") if one] if visible else list(range(gpus))
        number = choose(world)
        got.append(f"GPU {seen[number]} of {node}" if number < len(seen) else "invalid device ordinal")
    return got
