"""Does communication overlap backward? Seen by waiting, amid backward, for what is on its way: no clock decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from serial import MAKES, Make, assert_equal, batches, distributed, mse, part, twins
from torch import nn

import workbench.torch as hvd

SMALL = {"BUCKET_BYTES": 3000, "EAGER_BYTES": 0}  # three buckets for a tower, and no tensor is eager
Loss = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def tower() -> nn.Module:
    """Three layers, each in a bucket of its own or in two, if these are :data:`SMALL`."""
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)).double()


def reduced_in_backward(optimizer: Any, first: torch.Tensor) -> list[int]:
    """Whenever backward comes to the gradient of the first layer, wait for all reductions that have begun.

    They end only if every rank has begun them, and every rank is amid its backward then. What is returned gets their
    number, each time.
    """
    numbers: list[int] = []

    def wait(_: torch.Tensor) -> None:
        handles = set(getattr(optimizer._distributed.source, "_handles", {}).values())  # one rank alone has none
        for handle in handles:
            handle.wait()
        numbers.append(len(handles))

    first.register_hook(wait)
    return numbers


def in_buckets(model: nn.Module, optimizer: Any) -> bool:
    """Is every gradient a part of its bucket, or was so until a sharded step has used it up?"""
    buckets, used_up = optimizer._distributed.grads.buckets, bool(optimizer._distributed.shards)
    return all(
        name in buckets
        and (used_up if param.grad is None else param.grad.data_ptr() == buckets[name].views[name].data_ptr())
        for name, param in model.named_parameters()
    )


def train_overlapped(
    n: int,
    make: Make = MAKES["SGD"],
    model_of: Callable[[], nn.Module] = tower,
    prepare: Callable[[nn.Module], Any] = lambda model: model,
    loss: Loss = mse,
    stepper: Callable[[Any], Callable[[], Any]] = lambda optimizer: optimizer.step,
    tolerance: float = 1e-12,
    overlaps: bool = True,
    its_make: Make | None = None,
    **options: Any,
) -> None:
    """Train a model and its eager serial twin: equal after each step, in buckets, reduced while backward runs.

    Args:
        n: ranks.
        make, its_make: the optimizers of the model and of its twin, by default of one kind.
        model_of: makes the model; its first parameter is the one whose gradient is the last.
        prepare: the model, as it is called.
        loss: of a model and a batch.
        stepper: the function that is called to step.
        tolerance: of a parameter.
        overlaps: is anything reduced before backward is over?
        options: of DistributedOptimizer.
    """
    model, serial = twins(model_of)
    optimizer, reference = distributed(model, make, **options), (its_make or make)(serial.parameters())
    reduced = reduced_in_backward(optimizer, next(model.parameters()))
    called, step = prepare(model), stepper(optimizer)
    for x, y in batches(n, 5):
        optimizer.zero_grad()
        reference.zero_grad()
        loss(called, part(x), part(y)).backward()
        step()
        loss(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial, tolerance)
    if n > 1:
        assert in_buckets(model, optimizer)
        assert len(set(optimizer._distributed.grads.buckets.values())) > 1
        assert all(number > 0 for number in reduced[1:]) == overlaps, reduced
    weights = hvd.allgather_object([param.detach() for param in model.parameters()])
    assert all(torch.equal(a, b) for each in weights for a, b in zip(each, weights[0], strict=True))
