"""What would beat the 68 % of VGG-16 on 512 GPUs, what it costs, and whether the workbench has it.

Each idea is simulated on the paper cluster; :func:`compared` gives the figures, with these columns and the sources::

    >>> for row in compared():
    ...     print(row)
    as published             67.5 %  nothing
    float16                  88.2 %  rounding of the sum
    batch of 128             89.2 %  memory; a learning rate that grows with it, and a warm-up
    two levels               58.4 %  each GPU sends on its own; gains only where messages are short
    leaders                  51.7 %  as two levels; the bytes inside a host move four times
    sharded optimizer        59.6 %  half of the bytes wait for the update; memory is what it saves
    priority                 81.3 %  a message for each piece, and steps that overlap
    priority, float16        88.2 %  both
    PowerSGD, rank 4         88.2 %  computing, which is not counted here; accuracy; needs error feedback
    local SGD, 8             86.4 %  accuracy: ranks differ between exchanges

Two papers measured that ideas like these gain less than their authors report. Of more than 200 set-ups, compression won
in 6 (arXiv:2103.00543), since allreduce overlaps with backward, and compression does not. And on 100 Gbit/s the network
is hardly used, since software does not keep up (arXiv:2006.10103): faster software helps there, not fewer bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from workbench.collectives.ring import ring_allreduce
from workbench.simulate.algorithms import allgather, reduce_scatter
from workbench.simulate.levels import Leaders, TwoLevels
from workbench.simulate.machines import Machines
from workbench.simulate.models import Layer, Layers
from workbench.simulate.published import MODELS, pascal, reduction
from workbench.simulate.schedule import Algorithm
from workbench.simulate.steps import MIB, Overlap, Policy, simulate, spans


@dataclass(frozen=True)
class Idea:
    """A change to how a model is trained.

    Args:
        name: of the idea.
        policy: how gradients travel.
        algorithm: what reduces them, on so many ranks a host.
        batch: so many times the samples of a step.
        sent: how many numbers of a layer travel.
        every: the ranks exchange after so many steps.
        gather: brings to all what each rank has updated, before the next forward; None: each rank updates all.
        cost: what it costs.
        source: where it was published.
        here: how the workbench calls it; empty: it has no such thing.
    """

    name: str
    policy: Policy = field(default_factory=Policy)
    algorithm: Callable[[int], Algorithm] = lambda per_host: ring_allreduce
    batch: float = 1.0
    sent: Callable[[Layer], int] = lambda layer: layer.parameters
    every: int = 1
    gather: Algorithm | None = None
    cost: str = "nothing"
    source: str = ""
    here: str = ""

    def efficiency(self, model: Layers, step_s: float, machines: Machines, common: float = 0.0) -> float:
        """Samples per second of all ranks, by those of one rank times their number.

        Args:
            model: the layers.
            step_s: one rank's step alone, with the batch as it was.
            machines: all ranks.
            common: part of a step that is lost in any case.

        Raises:
            ValueError: the model has no parameters, or ``step_s`` is no positive number.
        """
        layers = [
            replace(span, values=self.sent(layer))
            for span, layer in zip(spans(model, step_s * self.batch), model, strict=True)
        ]
        if self.gather:
            nbytes = float(self.policy.value_bytes * sum(layer.values for layer in layers))
            wait_s = reduction(machines, self.gather)(nbytes)
            layers[0] = replace(layers[0], forward_s=layers[0].forward_s + wait_s)
        once = simulate(layers, reduction(machines, self.algorithm(machines.per_host)), self.policy).step_s
        alone = step_s * self.batch
        return alone * self.every / (once + alone * (self.every - 1)) * (1 - common)


def power_sgd(rank: int) -> Callable[[Layer], int]:
    """How many numbers of a layer travel where its matrix is approximated by one of a low rank.

    Example:
        >>> power_sgd(4)(Layer("fc", parameters=1000 * 2000 + 1000, flops=0, rows=1000))
        13004
    """

    def sent(layer: Layer) -> int:
        columns = layer.parameters // layer.rows  # the bias is one of them
        return min(layer.parameters, rank * (layer.rows + columns) + layer.rows)

    return sent


PRIORITY = Policy(Overlap.FORWARD, priority=True, fusion_bytes=32 * MIB, piece_bytes=32 * MIB)
"""Smaller pieces pay the ring's latency too often: 4 MiB are 8 KiB a message on 512 ranks. Larger ones block."""

IDEAS = (
    Idea("as published", source="Horovod's README", here="DistributedOptimizer(optimizer)"),
    Idea(
        "float16",
        Policy(value_bytes=2),
        cost="rounding of the sum",
        source="arXiv:1710.03740",
        here="DistributedOptimizer(compression=Compression.fp16)",
    ),
    Idea(
        "batch of 128",
        batch=2.0,
        cost="memory; a learning rate that grows with it, and a warm-up",
        source="arXiv:1706.02677",
        here="DistributedOptimizer(backward_passes_per_step=2)",
    ),
    Idea(
        "two levels",
        algorithm=TwoLevels,
        cost="each GPU sends on its own; gains only where messages are short",
        source="Horovod's hierarchical allreduce; arXiv:1807.11205",
        here="HOROVOD_HIERARCHICAL_ALLREDUCE=1, on GPUs with NCCL",
    ),
    Idea(
        "leaders",
        algorithm=Leaders,
        cost="as two levels; the bytes inside a host move four times",
        source="arXiv:1807.11205",
        here="the default between machines without GPUs, from WORKBENCH_HIERARCHICAL_BYTES on",
    ),
    Idea(
        "sharded optimizer",
        algorithm=lambda per_host: reduce_scatter,
        gather=allgather,
        cost="half of the bytes wait for the update; memory is what it saves",
        source="ZeRO, arXiv:1910.02054",
        here="DistributedOptimizer(sharded=True), PyTorch",
    ),
    Idea(
        "priority",
        PRIORITY,
        cost="a message for each piece, and steps that overlap",
        source="P3, arXiv:1905.03960: up to 66 %; ByteScheduler, SOSP 2019: up to 2.96 times",
        here="DistributedOptimizer(overlap_forward=True), PyTorch on CPUs",
    ),
    Idea(
        "priority, float16",
        replace(PRIORITY, value_bytes=2),
        cost="both",
        source="as above",
        here="the same with WORKBENCH_WIRE=float16, which rounds between machines",
    ),
    Idea(
        "PowerSGD, rank 4",
        sent=power_sgd(4),
        cost="computing, which is not counted here; accuracy; needs error feedback",
        source="arXiv:1905.13727; against: arXiv:2103.00543",
        here="DistributedOptimizer(compression=Compression.powersgd(4)), PyTorch",
    ),
    Idea(
        "local SGD, 8",
        every=8,
        cost="accuracy: ranks differ between exchanges",
        source="arXiv:1805.09767; DiLoCo, arXiv:2311.08105: 500 steps, by 8 workers",
        here="LocalSGD(optimizer, every=8), or DiLoCo, PyTorch",
    ),
)


@dataclass(frozen=True)
class Compared:
    """An idea on the paper cluster.

    Args:
        idea: what changes.
        efficiency: as :meth:`Idea.efficiency`.
    """

    idea: Idea
    efficiency: float

    def __str__(self) -> str:
        return f"{self.idea.name:22} {100 * self.efficiency:6.1f} %  {self.idea.cost}"


def compared(name: str = "VGG-16", machines: Machines | None = None, common: float = 0.10) -> list[Compared]:
    """Each of :data:`IDEAS`.

    Args:
        name: of :data:`workbench.simulate.published.MODELS`.
        machines: the paper's 512 GPUs if None.
        common: part of a step that is lost in any case.

    Raises:
        KeyError: no model has this name.
    """
    paper, cluster = MODELS[name], machines or pascal()
    model = paper.model()
    return [Compared(idea, idea.efficiency(model, paper.step_s, cluster, common)) for idea in IDEAS]
