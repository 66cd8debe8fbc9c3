"""ZeRO 2 and 3 under serial scripts' habits: what would go wrong without a word is refused, or is right."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import time

import pytest
import torch
from torch import nn
from zero import OPTIMIZERS, STAGES, Twins, net

import workbench.torch as hvd


@pytest.mark.ranks(2)
def test_an_optimizer_that_goes_while_gradients_travel(rank: int, n: int) -> None:
    """A cell that is run again drops model and optimizer amid a reduction: no memory of others is written to."""
    for turn in range(3):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(200, 200) for _ in range(3)))
        named = [(f"{turn}.{name}", param) for name, param in model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters()), named, sharded="gradients")
        if rank:
            time.sleep(0.02)  # the others have sent, and wait for this one
        model(torch.ones(2, 200)).sum().backward()
        del model, named, optimizer
        gc.collect()
        others = [torch.full((40_000,), 7.0) for _ in range(20)]
        hvd.barrier()
        assert all(bool((each == 7.0).all()) for each in others)


@pytest.mark.parametrize("stage", STAGES)
def test_who_looks_for_a_gradient_that_is_divided(stage: str, n: int) -> None:
    """torch's clipping, model.zero_grad() and a plain optimizer would find none: they are told what to call."""
    twins = Twins(stage, net, OPTIMIZERS["SGD"])
    plain = torch.optim.SGD(twins.model.parameters(), lr=0.1)
    twins.backward(0)
    for habit in (
        lambda: nn.utils.clip_grad_norm_(twins.model.parameters(), 1.0),
        lambda: nn.utils.clip_grad_value_(twins.model.parameters(), 1.0),
        twins.model.zero_grad,
        plain.step,
    ):
        with pytest.raises(RuntimeError, match=r"gradient of .* is divided among the ranks.*optimizer\.zero_grad\(\)"):
            habit()
    twins.both_step()
    twins.model.zero_grad()  # used up: there is nothing to drop
    twins.twin.zero_grad()
    twins.step(1)
    twins.check()


def test_a_model_is_copied_before_the_step(n: int) -> None:
    """A copy, and one that went through torch.save, are plain models: they have gradients of their own."""
    twins = Twins("gradients", net, OPTIMIZERS["SGD"])
    twins.backward(0)
    file = io.BytesIO()
    torch.save(twins.model.get_parameter("0.weight"), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for param in (copy.deepcopy(twins.model).get_parameter("0.weight"), loaded):
        assert type(param) is nn.Parameter
        assert param.grad is None
        assert torch.equal(param, twins.model.get_parameter("0.weight"))


@pytest.mark.parametrize("later", [False, "gradients"])
def test_taken_over_amid_a_step(later: bool | str, n: int) -> None:
    """Another optimizer, made between backward and step, finds parameters like any, and trains on."""
    twins = Twins("gradients", net, OPTIMIZERS["SGD"])
    twins.backward(0)
    inner = OPTIMIZERS["SGD"](twins.model.parameters())
    twins.optimizer = hvd.DistributedOptimizer(inner, twins.model.named_parameters(), sharded=later)
    for step in range(1, 3):
        twins.step(step)
        twins.check()


def test_one_optimizer_for_two_divided_models(n: int) -> None:
    """The second model's parameters would stay as they are: refused by name, with two ways out."""
    models = {name: hvd.shard_parameters(nn.Linear(3, 3)) for name in "ab"}
    named = [(f"{key}.{name}", param) for key, model in models.items() for name, param in model.named_parameters()]
    inner = torch.optim.SGD(itertools.chain(*(model.parameters() for model in models.values())), lr=0.1)
    with pytest.raises(ValueError, match=r"'b\.weight' belongs to another divided model.*torch\.nn\.ModuleList"):
        hvd.DistributedOptimizer(inner, named, sharded="parameters")
