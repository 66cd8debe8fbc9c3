"""What would beat the 68 % of VGG-16 on 512 GPUs, and what it costs: each idea on the paper cluster.

================  ====================================================================  ==============================
idea              what changes                                                          what it costs
================  ====================================================================  ==============================
float16           half the bytes on the wire                                            rounding of the sum
batch of 128      twice the computing for each exchange                                 memory, and learning rates
two levels        hosts reduce inside first                                             nothing
priority          front layers overtake, into the next forward (P3, ByteScheduler)      a message for each piece
PowerSGD, rank 4  a matrix travels as two thin ones                                     accuracy; needs error feedback
local SGD, 8      the ranks meet after 8 steps                                          accuracy
================  ====================================================================  ==============================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from workbench.collectives.ring import ring_allreduce
from workbench.simulate.levels import TwoLevels
from workbench.simulate.machines import Machines
from workbench.simulate.models import Layer, Layers
from workbench.simulate.published import reduction
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
    """

    name: str
    policy: Policy = field(default_factory=Policy)
    algorithm: Callable[[int], Algorithm] = lambda per_host: ring_allreduce
    batch: float = 1.0
    sent: Callable[[Layer], int] = lambda layer: layer.parameters
    every: int = 1

    def efficiency(self, model: Layers, step_s: float, machines: Machines, common: float = 0.0) -> float:
        """Samples per second of all ranks, by those of one rank times their number.

        Args:
            model: the layers.
            step_s: one rank's step alone, with the batch as it was.
            machines: all ranks.
            common: part of a step that is lost in any case.
        """
        layers = [
            replace(span, values=self.sent(layer))
            for span, layer in zip(spans(model, step_s * self.batch), model, strict=True)
        ]
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
    Idea("as published"),
    Idea("float16", Policy(value_bytes=2)),
    Idea("batch of 128", batch=2.0),
    Idea("two levels", algorithm=TwoLevels),
    Idea("priority", PRIORITY),
    Idea("priority, float16", replace(PRIORITY, value_bytes=2)),
    Idea("PowerSGD, rank 4", sent=power_sgd(4)),
    Idea("local SGD, 8", every=8),
)

__all__ = ["IDEAS", "PRIORITY", "Idea", "power_sgd"]
