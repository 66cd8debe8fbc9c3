"""Linear layers that write their gradients to the buckets: the same numbers as without, and no copy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from overlap import SMALL, in_buckets, tower, train_overlapped
from serial import MAKES, assert_equal, batches, distributed, mse, part, step_alike, twins
from thorough import diagonal
from torch import nn

import workbench.torch as hvd


@pytest.fixture(autouse=True)
def small_buckets(job_with: Callable[..., None]) -> None:
    """Several buckets for a small model."""
    job_with(**SMALL)


def writing() -> nn.Module:
    """All layers of a tower write by themselves."""
    return hvd.write_in_buckets(tower(), least_bytes=0)


@pytest.mark.parametrize(("make", "sharded"), diagonal(MAKES, [False, True]))
def test_equals_the_serial_run(make: str, sharded: bool, n: int) -> None:
    """A model whose layers write to the buckets, and a plain one on one rank."""
    train_overlapped(n, MAKES[make], prepare=lambda model: hvd.write_in_buckets(model, 0), sharded=sharded)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_nothing_is_copied(set_to_none: bool, n: int) -> None:
    """When backward has finished a weight's gradient it lies in the bucket, before any hook of ours has run."""
    model, _ = twins(writing)
    there: dict[str, int] = {}
    for name, param in model.named_parameters():
        param.register_post_accumulate_grad_hook(lambda p, name=name: there.update({name: p.grad.data_ptr()}))
    optimizer = distributed(model)
    for step, (x, y) in enumerate(batches(n, 5)):
        optimizer.zero_grad(set_to_none=set_to_none)
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        for name, bucket in optimizer._distributed.grads.buckets.items():
            wanted = step > 1 - set_to_none and (not set_to_none or name.endswith("weight"))
            assert not wanted or there[name] == bucket.views[name].data_ptr(), (step, name)
    assert in_buckets(model, optimizer)


class Twice(nn.Module):
    """A layer that is used twice, one that shares its weight, and inputs of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.twin, self.head = (nn.Linear(4, 4, bias=i != 1) for i in range(3))
        self.twin.weight = self.body.weight
        hvd.write_in_buckets(self.double(), 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(-1, 2, 4)
        return self.head(self.twin(self.body(self.body(x).tanh()).tanh())).reshape(-1, 4)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_weight_that_is_used_often(set_to_none: bool, n: int) -> None:
    """Only one of its parts is written there; the sum is right, also over several passes."""
    model, serial = twins(Twice)
    optimizer, reference = distributed(model, backward_passes_per_step=2), MAKES["SGD"](serial.parameters())
    data = list(batches(n, 10))
    for start in range(0, len(data), 2):
        for net, one, rows in ((model, optimizer, part), (serial, reference, lambda all: all)):
            one.zero_grad(set_to_none=set_to_none)
            for x, y in data[start : start + 2]:
                mse(net, rows(x), rows(y)).backward()
            one.step()
        assert_equal(model, serial)


def test_a_backward_that_was_broken_off(n: int) -> None:
    """A place that was written and never used is used again in the step after the next."""
    model, serial = twins(writing)
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())

    def refuse(_: torch.Tensor) -> None:
        raise ArithmeticError("on purpose")

    for step, (x, y) in enumerate(batches(n, 8)):
        if step == 4:
            optimizer.zero_grad()
            hook = model[2].weight.register_hook(refuse)
            with pytest.raises(ArithmeticError):
                mse(model, part(x), part(y)).backward()
            hook.remove()
            optimizer.abandon_step()
        step_alike(model, optimizer, serial, reference, (x, y))


def test_a_penalty_on_the_gradient(n: int) -> None:
    """The gradient of a loss that has a gradient in it."""

    def loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return mse(model, x, y) + slope.square().mean()

    train_overlapped(n, model_of=writing, loss=loss)


def test_it_is_a_linear_layer_for_all_others(n: int) -> None:
    """Its state, a copy of it, and its results under autocast and in a compiled model are a plain layer's."""
    torch.manual_seed(3)
    plain = tower().float()
    model = hvd.write_in_buckets(copy.deepcopy(plain), 0)
    assert all(isinstance(layer, nn.Linear) for layer in model[::2])
    assert list(model.state_dict()) == list(plain.state_dict())
    x = torch.randn(3, 4)
    for mine in (model, copy.deepcopy(model), torch.compile(model, backend="eager")):
        assert torch.equal(mine(x), plain(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(x), plain(x))
    assert model(x).grad_fn is not None
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))


def test_small_layers_are_left(n: int) -> None:
    """By default only weights of a MiB and more."""
    large, small = nn.Linear(600, 600), nn.Linear(600, 2)
    hvd.write_in_buckets(nn.Sequential(large, small))
    assert type(small) is nn.Linear
    assert type(large) is not nn.Linear
