"""Buckets over the life of a model: another optimizer, another job, a step broken off, a model that is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bag import MAKES, STEPS, ZEROS, Pair
from serial import batches, distributed, goes_on, mse, part, twins
from thorough import diagonal, quick
from torch import nn

import workbench.torch as hvd

SMALL = {"BUCKET_BYTES": 200, "EAGER_BYTES": 0}  # several buckets, and no tensor is eager


@pytest.mark.parametrize(("make", "zero"), diagonal(MAKES, ZEROS, most=1))
def test_made_again_amid_training(make: str, zero: str, n: int, job_with: Callable[..., None]) -> None:
    """A new optimizer on the same model, whose gradients still lie in the old one's buckets."""
    job_with(**SMALL)
    pair = Pair(n, MAKES[make])
    for step in range(3 * 3):
        if step and step % 3 == 0:
            pair.wrap()
            pair.reference = pair.make(pair.twin.parameters())
        pair.step(step % STEPS, zero)
    pair.check_state()


@pytest.mark.parametrize("zero", quick(ZEROS, "model"))
def test_another_job_amid_training(zero: str, n: int, job_with: Callable[..., None]) -> None:
    """shutdown() and init() between two steps, to buckets of other sizes and to none: training goes on as if not."""
    job_with(**SMALL)
    pair = Pair(n, MAKES["Adam"])
    for step in range(STEPS + 4):
        if step in (3, 6, 9):
            job_with(BUCKET_BYTES={3: 0, 6: 400, 9: 1 << 20}[step])
        pair.step(step % STEPS, zero)
    pair.check_state()


@pytest.mark.parametrize("layer", quick(range(5), 0, 4))
def test_a_step_that_is_broken_off(layer: int, n: int, job_with: Callable[..., None]) -> None:
    """Backward raises on all ranks, some buckets on their way: after abandon_step() the steps are right again."""
    job_with(**SMALL)
    model, _ = twins(lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))).double())
    optimizer = distributed(model)
    goes_on(n, model, optimizer)

    def refuse(_: torch.Tensor) -> None:
        raise ArithmeticError("on purpose")

    hook = model[layer].weight.register_hook(refuse)
    optimizer.zero_grad()
    x, y = next(batches(n))
    with pytest.raises(ArithmeticError):
        mse(model, part(x), part(y)).backward()
    optimizer.abandon_step()
    hook.remove()
    goes_on(n, model, optimizer)
    assert n == 1 or len(set(optimizer._distributed.grads.buckets.values())) > 2


def test_options_changed_by_wrapping_again(n: int, job_with: Callable[..., None]) -> None:
    """From buckets to groups, with which there are none, and back to buckets with another option."""
    job_with(**SMALL)
    pair = Pair(n)
    changes: dict[int, dict[str, Any]] = {3: {"num_groups": 3}, 6: {"num_groups": 0, "gradient_predivide_factor": 2.0}}
    for step in range(10):
        if step in changes:
            pair.wrap(**changes[step])
            pair.reference = pair.make(pair.twin.parameters())
        pair.step(step % STEPS)
        assert bool(pair.optimizer._distributed.grads.buckets) == (n > 1 and step not in (3, 4, 5))


@pytest.mark.parametrize(
    "when", quick(["before zero_grad", "after zero_grad", "after zero_grad to zero"], "after zero_grad to zero")
)
def test_a_model_that_is_moved(when: str, n: int, job_with: Callable[..., None]) -> None:
    """``model.to()`` gives parameters, and the gradients that there are, other memory: the next steps are right."""
    job_with(**SMALL)
    pair = Pair(n)
    for step in range(STEPS):
        if step in (3, 5):
            if when != "before zero_grad":
                pair.optimizer.zero_grad(set_to_none=when == "after zero_grad")
                pair.reference.zero_grad(set_to_none=when == "after zero_grad")
            pair.bag._apply(lambda tensor: tensor.clone())
        pair.step(step, "optimizer, to None" if when != "after zero_grad to zero" else "optimizer, to zero")
    pair.check_state()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_model_that_gets_another_dtype(set_to_none: bool, n: int) -> None:
    """``model.double()`` amid training: the gradients travel in the new dtype from then on."""
    params = [nn.Parameter(torch.zeros(size)) for size in (5, 2000)]
    model = nn.ParameterList(params)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), model.named_parameters())
    tiny = 2.0**-40  # lost in float32
    for step in range(8):
        if step == 4:
            model.double()
            for param in params:
                param.data.zero_()
        optimizer.zero_grad(set_to_none=set_to_none)
        factor = 1.0 if step < 4 else 1.0 + tiny * (hvd.rank() + 1)
        sum((param * factor).sum() for param in params).backward()
        optimizer.step()
        wanted = 1.0 if step < 4 else 1.0 + tiny * (n + 1) / 2
        for param in params:
            assert param.grad.dtype is (torch.float32 if step < 4 else torch.float64)
            np.testing.assert_array_equal(param.grad.numpy(), wanted)


def test_gradients_given_by_hand(n: int, job_with: Callable[..., None]) -> None:
    """A ``.grad`` that somebody puts there, in other memory or another layout, is taken as it is."""
    job_with(**SMALL)
    pair = Pair(n)
    for step in range(STEPS):
        for bag, optimizer, _ in pair.both():
            optimizer.zero_grad()
            bag.freeze(step)
            for i, param in enumerate(bag.parameters()):
                if param.requires_grad and (i + step) % 3:
                    values = torch.arange(param.numel(), dtype=torch.float64).reshape(param.shape) + i
                    factor = hvd.rank() + 1 if bag is pair.bag else (n + 1) / 2
                    param.grad = (
                        (values * factor).contiguous()
                        if step % 2
                        else (values.flip(0) if values.dim() else values) * factor
                    )
        pair.both_step()
        pair.check(step)


@pytest.mark.ranks(2)
def test_gradients_that_are_changed_on_their_way(n: int, job_with: Callable[..., None]) -> None:
    """Whoever writes to a gradient that is in a bucket on its way is told its name; the next steps are right."""
    job_with(**SMALL)
    pair = Pair(n)
    pair.go_on(range(4))
    pair.optimizer.zero_grad()
    pair.bag.freeze(0)
    pair.bag.loss([hvd.rank()], 0, n).backward()
    pair.bag.get_parameter("always").grad.mul_(2.0)
    with pytest.raises(RuntimeError, match="gradient of 'always' was changed while it was being sent"):
        pair.optimizer.step()
    pair.go_on(range(4, STEPS))
    pair.check_state()
