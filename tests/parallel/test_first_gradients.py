"""Gradients before the first step: zeros to look at and to broadcast, which change nothing in training."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from serial import MAKES, Net, assert_equal, batches, distributed, mse, part, step_alike, twins
from thorough import diagonal
from torch import nn

import workbench.torch as hvd


def are_zeros(model: nn.Module) -> bool:
    """Has each trained parameter a gradient of zeros like itself, and a frozen one none?"""
    return all(
        param.grad is not None and param.grad.shape == param.shape and param.grad.dtype is param.dtype
        and param.grad.stride() == param.stride() and not param.grad.any()
        if param.requires_grad else param.grad is None
        for param in model.parameters()
    )  # fmt: skip


def test_after_wrapping(n: int) -> None:
    """Every trained parameter has zeros as its gradient, in its own dtype and layout; a frozen one has none."""
    model = nn.Sequential(Net(), nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last), nn.Linear(1, 1).half())
    distributed(model)
    assert are_zeros(model)
    for param in model.parameters():
        if param.requires_grad:
            assert hvd.broadcast(param.grad.contiguous(), root_rank=n - 1).shape == param.shape


def test_a_gradient_that_is_there_stays(n: int) -> None:
    """Who wraps between backward and step keeps the gradients of that backward."""
    model, _ = twins()
    mse(model, *map(part, next(batches(n)))).backward()
    before = model.head.weight.grad
    distributed(model)
    assert model.head.weight.grad is before
    assert not model.unused.weight.grad.any()


@pytest.mark.parametrize("wrapped", [True, False])
def test_after_the_state_was_broadcast(wrapped: bool, n: int) -> None:
    """Also if the gradients had been set to None, and for an optimizer that is not wrapped (yet)."""
    model = Net()
    optimizer = distributed(model) if wrapped else MAKES["SGD"](model.parameters())
    optimizer.zero_grad()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert are_zeros(model)
    grad = optimizer.param_groups[0]["params"][0].grad
    assert torch.equal(hvd.broadcast(grad, root_rank=n - 1), grad)


def wrap(model: nn.Module, name: str) -> Any:
    """The usual way."""
    return distributed(model, MAKES[name])


def broadcast_then_wrap(model: nn.Module, name: str) -> Any:
    """As Horovod's PyTorch examples do."""
    inner = MAKES[name](model.parameters())
    hvd.broadcast_optimizer_state(inner, root_rank=0)
    return hvd.DistributedOptimizer(inner, model.named_parameters())


def wrap_then_broadcast(model: nn.Module, name: str) -> Any:
    """As its README does."""
    optimizer = wrap(model, name)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return optimizer


def wrap_twice(model: nn.Module, name: str) -> Any:
    """A notebook's cell that is run again."""
    wrap(model, name)
    return wrap(model, name)


def wrap_and_fill(model: nn.Module, name: str) -> Any:
    """What is done with the zeros changes nothing."""
    optimizer = wrap(model, name)
    optimizer.zero_grad(set_to_none=False)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # multiplies zeros, in place
    return optimizer


HOW = [wrap, broadcast_then_wrap, wrap_then_broadcast, wrap_twice, wrap_and_fill]


@pytest.mark.parametrize(("how", "name"), diagonal(HOW, MAKES))
def test_training_equals_the_serial_run(how: Callable[..., Any], name: str, n: int) -> None:
    """Weight decay and momentum leave alone what no rank used, as without Horovod: its zeros are no gradient."""
    model, serial = twins()
    optimizer, reference = how(model, name), MAKES[name](serial.parameters())
    for x, y in batches(n, 4):  # no zero_grad() before the first backward
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)
        assert model.unused.weight.grad is None
        optimizer.zero_grad()
        reference.zero_grad()


@pytest.mark.parametrize("sharded", [False, True])
def test_a_broadcast_amid_training(sharded: bool, n: int) -> None:
    """Zeros that come later, when gradients live in buckets and perhaps in parts, are no gradients either."""
    model, serial = twins()
    optimizer, reference = distributed(model, sharded=sharded), MAKES["SGD"](serial.parameters())
    for step, (x, y) in enumerate(batches(n, 6)):
        if step == 3:
            optimizer.zero_grad()
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            assert model.unused.weight.grad is not None
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert model.unused.weight.grad is None
        assert torch.allclose(model.head.weight, serial.head.weight, rtol=0, atol=1e-12)
        assert torch.equal(model.unused.weight, serial.unused.weight)
        optimizer.zero_grad()
        reference.zero_grad()


@pytest.mark.parametrize("name", MAKES)
def test_an_optimizer_that_is_never_wrapped(name: str) -> None:
    """After the broadcast of its state it trains as if nothing had been there."""
    model, serial = twins()
    optimizer, reference = MAKES[name](model.parameters()), MAKES[name](serial.parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for x, y in batches(1, 3):
        for net, one in ((model, optimizer), (serial, reference)):
            mse(net, x, y).backward()
            one.step()
            one.zero_grad()
        assert_equal(model, serial, tolerance=0.0)


def test_a_step_of_one_s_own(n: int) -> None:
    """step() within skip_synchronize() right after wrapping takes no step with zeros either."""
    model, serial = twins()
    optimizer = distributed(model)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert_equal(model, serial, tolerance=0.0)


def test_a_sparse_gradient_stays_sparse(n: int) -> None:
    """The first backward's gradient takes the place of the zeros, and is not added to them."""
    model = nn.Embedding(10, 3, sparse=True)
    optimizer = distributed(model, torch.optim.SparseAdam)
    assert not model.weight.grad.any()
    model(torch.tensor([1, 2])).sum().backward()
    assert model.weight.grad.is_sparse
    optimizer.step()


def test_networks_that_take_turns(n: int) -> None:
    """Of two networks the one that is frozen has zeros, the other one gradients; their optimizers take turns."""
    first, second = nn.Conv2d(1, 3, 1), nn.Conv2d(3, 1, 1)
    nets = [first, second]
    optimizers = [distributed(net, lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.1)) for net in nets]
    for step in range(6):
        for i, net in enumerate(nets):
            net.requires_grad_(step % 2 == i)
        for optimizer in optimizers:
            optimizer.zero_grad()
        second(first(torch.ones(1, 1, 2, 2))).sum().backward()
        for i, net in enumerate(nets):
            assert all(bool(param.grad.any()) is (step % 2 == i) for param in net.parameters()), step
        optimizers[step % 2].step()


def test_a_frozen_part_is_left_alone(n: int) -> None:
    """A parameter that is frozen after some steps moves no more, whatever momentum and weight decay say."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    for step, (x, y) in enumerate(batches(n, 6)):
        for net in (model, serial):
            net.head.requires_grad_(step not in (2, 3))
        step_alike(model, optimizer, serial, reference, (x, y))


def test_a_model_can_be_saved_and_copied(n: int) -> None:
    """Before the first step, too; the copy is a model like any other."""
    model, _ = twins()
    distributed(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
        x, y = next(batches(1))
        mse(other, x, y).backward()
        assert other.head.weight.grad.any()
        assert other.unused.weight.grad is None


def test_nothing_is_kept_alive(n: int) -> None:
    """A model whose optimizer never stepped is freed as soon as nobody has it."""
    model, _ = twins()
    optimizer = distributed(model)
    gone = weakref.ref(model.head.weight)
    gc.collect()
    del model, optimizer
    gc.collect()
    assert gone() is None
