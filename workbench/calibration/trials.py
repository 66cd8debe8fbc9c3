"""Steps as a job makes them, on copies of the model: ``plan="auto"`` need not predict what was tried."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from workbench.job import api
from workbench.torch.compression import Compression
from workbench.torch.functions import broadcast_parameters
from workbench.torch.optimizer.distributed import DistributedOptimizer

if TYPE_CHECKING:
    from workbench.calibration.spans import Loss, MakeOptimizer

_TURNS, _MOST = 3, 20  # steps in a turn


def try_ways(
    model: torch.nn.Module, batch: tuple[Any, Any], loss: Loss, optimizer: MakeOptimizer, wire: str, seconds: float
) -> tuple[float, ...]:
    """Train a copy as it is and one with ``overlap_forward``, in turns; all ranks call it.

    Args:
        model, batch, loss, optimizer: as for :func:`workbench.measure`.
        wire: dtype of the gradients on the wire.
        seconds: how long, about; at least five steps of each, and eleven of short ones.

    Returns:
        How long a step takes with either, the median of the slowest rank's; with the first alone where updates cannot
        wait.
    """
    names = {"float32": "none", "float16": "fp16", "bfloat16": "bf16"}
    steps = list[Callable[[int], list[float]]]()
    with suppress(ValueError):
        for later in (False, True):
            own = copy.deepcopy(model).train()
            broadcast_parameters(own.state_dict(), 0)
            wrapped = DistributedOptimizer(
                optimizer(own.parameters()), own.named_parameters(),
                compression=getattr(Compression, names[wire]), overlap_forward=later,
            )  # fmt: skip
            steps.append(partial(_steps, wrapped, own, batch, loss))
    first = max(each(2)[-1] for each in steps)  # the first step plans the buckets
    slowest = float(api.allreduce(np.array([first]), "workbench.measure.tried", op=api.Max)[0])
    number = int(np.clip(seconds / (len(steps) * _TURNS * slowest), 2, _MOST))
    turns = [[each(1 + number)[1:] for each in steps] for _ in range(_TURNS if 4 * slowest < seconds else 1)]
    times = api.allreduce(np.array(turns), "workbench.measure.tried.steps", op=api.Max)
    return tuple(float(each) for each in np.median(times, axis=(0, 2)))


def _steps(optimizer: Any, model: torch.nn.Module, batch: tuple[Any, Any], loss: Loss, number: int) -> list[float]:
    """Make so many steps, and return how long each takes; then all updates are made."""
    ends = [time.perf_counter()]
    for _ in range(number):
        optimizer.zero_grad()
        loss(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ends.append(time.perf_counter())
    optimizer.state_dict()
    return list(np.diff(ends))
