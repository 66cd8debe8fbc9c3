"""Steps as a job makes them, on copies of the model: ``plan="auto"`` need not predict what was tried."""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from workbench.calibration.spans import Recording
from workbench.job import api
from workbench.simulate.measured.plan import BY_WIRE
from workbench.torch.compression import Compression
from workbench.torch.functions import copy_to_all
from workbench.torch.optimizer.distributed import DistributedOptimizer

_TURNS, _MOST = 3, 20  # steps in a turn


def try_ways(model: torch.nn.Module, recording: Recording, wire: str, seconds: float) -> tuple[float, ...]:
    """Train a copy as it is and one with ``overlap_forward``, in turns; all ranks call it.

    Args:
        model, recording: knows the batch, the loss and the optimizer.
        wire: dtype of the gradients on the wire.
        seconds: how long, about; but five steps of each at least, and eleven of short ones.

    Returns:
        How long a step takes with either, the median of the slowest rank's; with the first alone where updates cannot
        wait.
    """
    compression = getattr(Compression, BY_WIRE.get(wire, "none"))
    trained = list[tuple[torch.nn.Module, DistributedOptimizer]]()
    for later in (False, True):
        own = copy.deepcopy(model).train()
        copy_to_all(own.named_parameters(), 0)  # an optimizer refuses ranks whose weights differ
        with suppress(*[ValueError] * later):
            plain, named = recording.make(own.parameters()), own.named_parameters()
            trained.append((own, DistributedOptimizer(plain, named, compression, overlap_forward=later)))

    def steps(number: int) -> list[list[float]]:
        return [_steps(own, optimizer, recording, number) for own, optimizer in trained]

    second = np.max(steps(2), axis=0)[1:]  # the first step plans the buckets
    (slowest,) = api.allreduce(second, "workbench.measure.tried", op=api.Max)
    number = int(np.clip(seconds / (len(trained) * _TURNS * slowest), 2, _MOST))
    turns = np.array([steps(1 + number) for _ in range(_TURNS if 4 * slowest < seconds else 1)])
    times = api.allreduce(turns[:, :, 1:], "workbench.measure.tried.steps", op=api.Max)
    return tuple(float(each) for each in np.median(times, axis=(0, 2)))


def _steps(model: torch.nn.Module, optimizer: Any, recording: Recording, number: int) -> list[float]:
    """Make so many steps, and return how long each takes; then all updates are made."""
    ends, (inputs, targets) = [time.perf_counter()], recording.batch
    for _ in range(number):
        optimizer.zero_grad()
        recording.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ends.append(time.perf_counter())
    optimizer.state_dict()
    return list(np.diff(ends))
