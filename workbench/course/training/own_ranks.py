"""A small network on the ranks that run: its step, an allreduce's time, gradients sent by a schedule (lessons 13, 16).

All ranks call each of these functions. The network's gradients are those of three layers without a bias, so a layer's
gradients are one tensor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import workbench
import workbench.torch as hvd
from workbench.course.schedules.messages import Messages
from workbench.course.schedules.on_ranks import Gradient, Sender
from workbench.course.schedules.played import play
from workbench.simulate.steps import Span

SIZES = 256, 1024, 1024, 10
Schedule = Callable[[Sequence[Span], Callable[[float], float]], Messages]


def network(sizes: Sequence[int] = SIZES) -> nn.Sequential:
    """Linear layers with ReLU between them, the same weights on every rank; three without ``sizes``."""
    chance = torch.Generator().manual_seed(0)  # one of its own: ranks may be threads of one process
    first, *others = (nn.Linear(into, out, bias=False) for into, out in pairwise(sizes))
    model = nn.Sequential(first, *(layer for linear in others for layer in (nn.ReLU(), linear)))
    for weight in model.parameters():
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=chance)
    return model


def batch(sizes: Sequence[int] = SIZES, samples: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of this rank, for a :func:`network`."""
    chance = torch.Generator().manual_seed(1 + hvd.rank())
    return torch.randn(samples, sizes[0], generator=chance), torch.randint(sizes[-1], (samples,), generator=chance)


def slowest(seconds: float) -> float:
    """The slowest rank's time, on all ranks."""
    longest = hvd.allreduce(torch.tensor([seconds], dtype=torch.float64), op=hvd.Max, name="slowest")
    return float(longest.item())


def repeated(nbytes: int, rounds: int = 15) -> tuple[int, list[float]]:
    """The bytes, and the seconds of each of some allreduces of so many."""
    array, took = torch.ones(nbytes // 4), list[float]()
    for _ in range(rounds):
        hvd.barrier()
        begun = time.perf_counter()
        hvd.allreduce(array, name=f"ping {nbytes}")
        took.append(slowest(time.perf_counter() - begun))
    return nbytes, took


def trained(steps: int = 20, sizes: Sequence[int] = SIZES, samples: int = 64) -> float:
    """The median of some steps of training a :func:`network`, each of the slowest rank."""
    model, (inputs, targets) = network(sizes), batch(sizes, samples)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    took = []
    for _ in range(steps):
        hvd.barrier()
        begun = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        took.append(slowest(time.perf_counter() - begun))
    return median(took)


def sent_by(schedule: Schedule, layers: Sequence[Span], reduce_s: Callable[[float], float]) -> dict[str, Any]:
    """One backward pass whose gradients a schedule sends; each leaves as backward goes on.

    Args:
        schedule: a learner's.
        layers: as :func:`workbench.measure` gives them: the update, three layers, the loss.
        reduce_s: how long an allreduce of so many bytes takes.

    Returns:
        ``messages``: how many; ``seconds``: of this rank; ``right``: are all sums those of plain allreduces?
    """
    messages = schedule(layers, reduce_s)
    model, wanted = network(), _summed()
    gradients = [np.zeros(0, np.float32) for _ in layers]
    for i, weight in enumerate(model.parameters(), start=1):  # layer 0 is the update
        weight.grad = torch.zeros_like(weight)
        gradients[i] = weight.grad.numpy().reshape(-1)
    sender = Sender(workbench, gradients, messages, play(layers, messages, reduce_s).order)
    for i, weight in enumerate(model.parameters(), start=1):
        weight.register_post_accumulate_grad_hook(lambda _, i=i: sender.ready(i))  # type: ignore[no-untyped-call]
    inputs, targets = batch()
    hvd.barrier()
    begun = time.perf_counter()
    nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    sender.wait()
    seconds = time.perf_counter() - begun
    pairs = zip(gradients[1:-1], wanted, strict=True)
    right = all(np.allclose(mine, sums, rtol=1e-5, atol=1e-7) for mine, sums in pairs)
    return {"messages": len(messages), "seconds": seconds, "right": right}


def _summed() -> list[Gradient]:
    """The gradients' sums, each by an allreduce of its own after backward."""
    model, (inputs, targets) = network(), batch()
    nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return [
        hvd.allreduce(weight.grad, op=hvd.Sum, name=f"plain {i}").numpy().reshape(-1)
        for i, weight in enumerate(model.parameters())
        if weight.grad is not None
    ]
