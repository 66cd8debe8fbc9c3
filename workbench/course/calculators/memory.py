"""The second calculator: what a rank keeps in memory for training, and what it sends, plain and sharded.

After Rajbhandari, Rasley, Ruwase and He 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(arXiv:1910.02054), sections 3, 5 and 7. With Ψ parameters on n ranks, p and g bytes of a parameter and a gradient, and
o bytes that the optimizer keeps for each parameter::

    way                  parameters   gradients   optimizer   a rank sends in a step
    plain                pΨ           gΨ          oΨ          2(n - 1)/n · gΨ                  allreduce
    optimizer   (ZeRO 1) pΨ           gΨ          oΨ/n        (n - 1)/n · (gΨ + pΨ)            reduce-scatter, allgather
    gradients   (ZeRO 2) pΨ           gΨ/n        oΨ/n        (n - 1)/n · (gΨ + pΨ)            reduce-scatter, allgather
    parameters  (ZeRO 3) pΨ/n         gΨ/n        oΨ/n        (n - 1)/n · (gΨ + 2pΨ)           … allgather twice

In float32 p = g = 4. In mixed precision p = g = 2, and the optimizer keeps a float32 copy of the parameters besides,
4 bytes of o. SGD keeps nothing else, momentum 4 bytes, Adam 8. Activations belong to the samples of a rank's batch:
none of the four ways shards them.

What it leaves out: the buffers in which gradients travel; for ZeRO 2 the gradients of the bucket that is just being
reduced, and for ZeRO 3 the parameters of the layer that just computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class Sharding(Enum):
    """What each rank keeps only an n-th of; the values are the words of ``DistributedOptimizer(sharded=…)``."""

    PLAIN = "plain"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"

    @property
    def stage(self) -> int:
        """Of ZeRO; 0: none."""
        return list(Sharding).index(self)

    @property
    def option(self) -> bool | str:
        """As ``DistributedOptimizer`` takes it."""
        return {Sharding.PLAIN: False, Sharding.OPTIMIZER: True}.get(self, self.value)


@dataclass(frozen=True)
class Precision:
    """Bytes of each number.

    Args:
        parameter, gradient: with which forward and backward compute.
        copy: of a parameter, in float32, that the optimizer keeps.
    """

    parameter: int
    gradient: int
    copy: int


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {"float32": Precision(4, 4, 0), "mixed precision": Precision(2, 2, 4)}
)
OPTIMIZERS: Mapping[str, int] = MappingProxyType({"SGD": 0, "SGD with momentum": 4, "Adam": 8})
"""Bytes of state for each parameter, in float32."""
MIXED = "mixed precision"


@dataclass(frozen=True)
class MemorySettings:
    """What the sliders set.

    Args:
        parameters: Ψ, of the whole model.
        ranks: n.
        optimizer: one of :data:`OPTIMIZERS`.
        precision: one of :data:`PRECISIONS`.
        activation_bytes: what forward keeps for backward, for one sample.
        batch: samples of one rank.
        device_bytes: what a rank has.

    Raises:
        ValueError: a number is negative, there is no rank or no parameter, or no such optimizer or precision.
    """

    parameters: int = 1_500_000_000
    ranks: int = 8
    optimizer: str = "Adam"
    precision: str = MIXED
    activation_bytes: float = 0.0
    batch: int = 1
    device_bytes: float = 32e9

    def __post_init__(self) -> None:
        for name in ("parameters", "ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: 1 at least is needed.")
        for name in ("activation_bytes", "batch", "device_bytes"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is {getattr(self, name)}: 0 at least is needed.")
        for name, known in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                words = ", ".join(map(repr, known))
                raise ValueError(f"{name} is {getattr(self, name)!r}: choose one of {words}.")


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of one rank.

    Args:
        parameters, gradients, optimizer, activations: what it keeps.
        sent: what it sends in a step.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    sent: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations


def calculate(job: MemorySettings, sharding: Sharding) -> MemoryUse:
    """One rank's bytes.

    Example:
        The paper's figure 1: 7.5 billion parameters with Adam in mixed precision, on 64 ranks.

        >>> job = MemorySettings(parameters=7_500_000_000, ranks=64)
        >>> for sharding in Sharding:
        ...     found = calculate(job, sharding)
        ...     print(f"{sharding.value:10} {found.total / 1e9:5.1f} GB kept, {found.sent / 1e9:4.1f} GB sent")
        plain      120.0 GB kept, 29.5 GB sent
        optimizer   31.4 GB kept, 29.5 GB sent
        gradients   16.6 GB kept, 29.5 GB sent
        parameters   1.9 GB kept, 44.3 GB sent
    """
    size, n = PRECISIONS[job.precision], job.ranks
    parameters, gradients = float(size.parameter * job.parameters), float(size.gradient * job.parameters)
    state = float((size.copy + OPTIMIZERS[job.optimizer]) * job.parameters)
    gathered = (0, parameters, parameters, 2 * parameters)[sharding.stage]
    return MemoryUse(
        parameters / (n if sharding.stage >= 3 else 1),
        gradients / (n if sharding.stage >= 2 else 1),
        state / (n if sharding.stage >= 1 else 1),
        job.activation_bytes * job.batch,
        (n - 1) / n * (gathered + gradients * (1 if sharding.stage else 2)),
    )
