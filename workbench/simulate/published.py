"""The published scaling of 512 GPUs, derived: 90 % for Inception V3 and ResNet-101, 68 % for VGG-16.

Horovod's README gives these for 128 servers of four Pascal GPUs each, on 25 Gbit/s Ethernet with RoCE. How fast one GPU
is comes from pages of that time, see :data:`MODELS`; a layer's share of a step is its share of the floating point
operations. Two constants are not known, and are set once for all three models:

* ``line``: which part of the 25 Gbit/s the reductions get;
* ``common``: which part of a step everybody loses to stragglers, input and the framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.collectives.ring import ring_allreduce
from workbench.simulate.machines import Machines, Wire
from workbench.simulate.models import Layers, inception_v3, resnet101, vgg16
from workbench.simulate.schedule import Algorithm, timed
from workbench.simulate.steps import Policy, simulate, spans

GBIT = 1e9 / 8  # bytes a second
BATCH = 64


@dataclass(frozen=True)
class Paper:
    """One GPU's speed.

    Args:
        model: its layers.
        images_per_s: on one P100, with a batch of 64.
        source: where that was published.
    """

    model: Callable[[], Layers]
    images_per_s: float
    source: str

    @property
    def step_s(self) -> float:
        return BATCH / self.images_per_s


MODELS = {
    "Inception V3": Paper(inception_v3, 142.0, "TensorFlow's benchmark page, P100, batch 64"),
    "ResNet-101": Paper(resnet101, 103.6, "Horovod's docs/benchmarks: 1656.82 on 16 GPUs, so with scaling's loss"),
    "VGG-16": Paper(vgg16, 154.0, "TensorFlow's benchmark page, P100, batch 64"),
}


def pascal(hosts: int = 128, line: float = 0.85, gbit: float = 25.0) -> Machines:
    """Servers with four GPUs.

    Args:
        hosts: how many.
        line: part of the bandwidth that is reached.
        gbit: of a server's line, per second.
    """
    inside = Wire(latency_s=5e-6, per_byte_s=1 / 10e9)  # PCIe 3
    return Machines(hosts, 4, inside, Wire(latency_s=5e-6, per_byte_s=1 / (line * gbit * GBIT)))


def efficiency(name: str, machines: Machines, common: float = 0.10, policy: Policy | None = None) -> float:
    """Images per second of all GPUs, by those of one GPU times their number.

    Args:
        name: of :data:`MODELS`.
        machines: all GPUs.
        common: see the module.
        policy: how gradients travel.

    Example:
        >>> round(efficiency("VGG-16", pascal(hosts=4)), 2)
        0.71
    """
    paper = MODELS[name]
    found = simulate(spans(paper.model(), paper.step_s), reduction(machines), policy)
    return paper.step_s / found.step_s * (1 - common)


def reduction(machines: Machines, algorithm: Algorithm = ring_allreduce) -> Callable[[float], float]:
    """How long an algorithm takes for so many bytes."""
    return timed(algorithm, machines)
