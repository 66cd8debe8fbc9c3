"""The second calculator, held against a training on ranks of this machine.

Each way is a job of its own: a network is trained for some steps. In the last one every rank counts what its tensors
keep, each byte once (:mod:`~workbench.course.calculators.kept`): activations when forward has ended, all else when the
wrapped optimizer is about to step. Then all gradients are reduced, and none has been dropped.

Where the system tells how much memory the process has, it is asked at that moment, too, and before the model was made.
It sees buffers besides, and counts what ranks share in part for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import nn

import workbench
from workbench.common.table import RankTable, ShownAsTable
from workbench.course.calculators import units
from workbench.course.calculators.kept import Counted, of_the_system
from workbench.course.calculators.memory import MemorySettings, MemoryUse, Sharding, calculate

SIZES = 1024, 2048, 2048, 1024
"""Of a network with 8.4 million parameters."""
WAYS = Sharding.PLAIN, Sharding.OPTIMIZER
_WARM = 64, 64
_BATCH = 64  # of own_ranks.batch()
_STEPS, _DEADLINE_S = 3, 120.0
_OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, float]]] = {
    "SGD": (torch.optim.SGD, {"lr": 1e-3}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 1e-3}),
}
Wrap = Callable[[nn.Module, torch.optim.Optimizer, Sharding], torch.optim.Optimizer]
"""Makes the distributed optimizer for a model, its torch optimizer, and a way."""


@dataclass(frozen=True)
class KeptBytes:
    """Bytes of one rank, or of the ranks' mean.

    Args:
        parameters, gradients, optimizer, activations: that tensors keep.
        system: more than before, by the system; None where it does not say.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    system: float | None


@dataclass(frozen=True)
class MemoryRow:
    """One way.

    Args:
        sharding: the way.
        formula: as calculated.
        kept: as measured, the mean of the ranks.
    """

    sharding: Sharding
    formula: MemoryUse
    kept: KeptBytes


@dataclass(frozen=True, repr=False)
class MemoryComparison(ShownAsTable):
    """Calculated beside measured.

    Args:
        job: what was trained.
        rows: by way.
    """

    job: MemorySettings
    rows: Sequence[MemoryRow]

    @property
    def table(self) -> RankTable:
        """For reading: below each formula what was measured, in MB."""
        lines = [line for row in self.rows for line in _lines(row)]
        job = self.job
        about = f"MB of a rank: {units.count(job.parameters)} parameters, {job.optimizer}, {job.ranks} ranks."
        return RankTable(("way", "", *_PARTS, "total", "system"), lines, foot=(about, *_SYSTEM))


_PARTS = "parameters", "gradients", "optimizer", "activations"
_SYSTEM = (
    "The system is asked after backward, when there are no activations. Memory that ranks of one machine share, such "
    "as that of",
    "gradients which are being added up, it counts for each of them in part.",
)


def _lines(row: MemoryRow) -> list[tuple[str, ...]]:
    said, found = ([getattr(each, part) for part in _PARTS] for each in (row.formula, row.kept))
    return [
        (row.sharding.value, "formula", *map(_megabytes, [*said, sum(said)]), ""),
        ("", "measured", *map(_megabytes, [*found, sum(found)]), _megabytes(row.kept.system)),
    ]


def _megabytes(value: float | None) -> str:
    return "?" if value is None else f"{value / 1e6:.1f}"


def measured(
    ranks: int = 2,
    ways: Sequence[Sharding | str] = WAYS,
    optimizer: str = "Adam",
    sizes: Sequence[int] = SIZES,
    wrap: Wrap | None = None,
) -> MemoryComparison:
    """Train in each way, and count.

    Args:
        ranks: how many.
        ways: of :class:`~workbench.course.calculators.memory.Sharding`, or their names: "plain", "optimizer",
            "gradients", "parameters".
        optimizer: one of :data:`~workbench.course.calculators.memory.OPTIMIZERS`.
        sizes: of the network's layers.
        wrap: makes the distributed optimizer; ``DistributedOptimizer(sharded=…)`` if None.

    Raises:
        ValueError: no such way or optimizer.
        RankFailedError, PeerLostError, DeadlineError: a job has failed.
    """
    chosen = [Sharding(way) for way in ways]
    parameters = sum(into * out for into, out in pairwise(sizes))
    job = MemorySettings(parameters, ranks, optimizer, "float32", _activations(sizes), _BATCH)
    rows = []
    for way in chosen:
        arguments = (way, tuple(sizes), optimizer, wrap or wrapped)
        found: list[KeptBytes] = workbench.run(_on_a_rank, arguments, np=ranks, timeout_s=_DEADLINE_S)
        rows.append(MemoryRow(way, calculate(job, way), _mean(found)))
    return MemoryComparison(job, rows)


def wrapped(model: nn.Module, optimizer: torch.optim.Optimizer, sharding: Sharding) -> torch.optim.Optimizer:
    """The package's own way.

    Raises:
        ValueError: this workbench shards no gradients and no parameters.
    """
    import workbench.torch as hvd

    if sharding.stage > 1:
        shard = getattr(hvd, "shard_parameters", None)
        if shard is None:
            raise ValueError(f"This workbench has no sharded={sharding.value!r}: measure 'plain' and 'optimizer'.")
        if sharding is Sharding.PARAMETERS:
            shard(model)
    about: dict[str, Any] = {"sharded": sharding.option} if sharding.stage else {}
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **about)


def _mean(found: Sequence[KeptBytes]) -> KeptBytes:
    def of(part: str) -> float:
        return fmean(getattr(each, part) for each in found)

    system = None if any(each.system is None for each in found) else of("system")
    return KeptBytes(of("parameters"), of("gradients"), of("optimizer"), of("activations"), system)


def _on_a_rank(sharding: Sharding, sizes: tuple[int, ...], optimizer: str, wrap: Wrap) -> KeptBytes:
    """Train, and count what this rank keeps."""
    import workbench.torch as hvd
    from workbench.course.training.own_ranks import batch, network

    hvd.init()
    kind, options = _OPTIMIZERS[optimizer]
    small = network(_WARM)
    alone = kind(small.parameters(), **options)
    _train(small, alone, alone, *batch(_WARM))  # libraries take memory when they are first used
    inputs, targets = batch(sizes)
    before = of_the_system()
    model = network(sizes)
    inner = kind(model.parameters(), **options)
    outer = wrap(model, inner, sharding)
    found = _train(model, outer, inner, inputs, targets)
    hvd.shutdown()
    return replace(found, system=None if before is None or found.system is None else found.system - before)


def _train(
    model: nn.Module,
    outer: torch.optim.Optimizer,
    inner: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
) -> KeptBytes:
    """Some steps; what was counted in the last one, and all that the system says."""
    found = list[KeptBytes]()
    for step in range(_STEPS):
        outer.zero_grad()
        loss, activations = kept_by(lambda: nn.functional.cross_entropy(model(inputs), targets), model)
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
        if step == _STEPS - 1:
            inner.register_step_pre_hook(lambda *_: found.append(_count(model, inner, activations)))  # noqa: B023
        outer.step()
    return found[0]


def _count(model: nn.Module, optimizer: torch.optim.Optimizer, activations: int) -> KeptBytes:
    """What there is now, on all ranks at once."""
    from workbench.torch.sharded.resharded import get_grad

    counted = Counted()
    params = [*model.parameters(), *(param for group in optimizer.param_groups for param in group["params"])]
    state = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
    parameters = counted.add(params)
    gradients = counted.add(get_grad(param) for param in params)
    of_optimizer = counted.add(state)
    workbench.barrier()
    system = of_the_system()
    workbench.barrier()  # nobody goes on before all have looked
    return KeptBytes(parameters, gradients, of_optimizer, activations, system)


def kept_by(forward: Callable[[], torch.Tensor], model: nn.Module) -> tuple[torch.Tensor, int]:
    """A loss, and the bytes that it keeps for backward, without the parameters.

    Example:
        >>> model, inputs, targets = nn.Linear(3, 5), torch.zeros(2, 3), torch.zeros(2).long()
        >>> loss, nbytes = kept_by(lambda: nn.functional.cross_entropy(model(inputs), targets), model)
        >>> nbytes == 4 * 2 * 3 + 4 * 2 * 5 + 8 * 2 + 4  # inputs, log softmax, targets, one number
        True
    """
    counted, kept = Counted(), list[torch.Tensor]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()
    counted.add(model.parameters())
    return loss, counted.add(kept)


def _activations(sizes: Sequence[int]) -> float:
    """Bytes of one sample: what each layer puts in, and the last one puts out, in float32; its target, an int64."""
    return 4.0 * sum(sizes) + 8
