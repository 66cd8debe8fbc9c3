"""ZeRO 2 and 3 under serial scripts' habits: what would go wrong without a word is refused, or is right."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import time
from typing import Any

import pytest
import torch
from thorough import diagonal
from torch import nn
from zero import OPTIMIZERS, STAGES, Twins, net

import workbench.torch as hvd
from workbench.errors import MismatchError


@pytest.mark.ranks(2)
def test_an_optimizer_that_goes_while_gradients_travel(rank: int, n: int) -> None:
    """A cell that is run again drops model and optimizer amid a reduction: no memory of others is written to."""
    for _ in range(3):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(200, 200) for _ in range(3)))
        named = list(model.named_parameters())
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
    twins.go_on(range(1, 3))


def test_one_optimizer_for_two_divided_models(n: int) -> None:
    """The second model's parameters would stay as they are: refused by name, with two ways out."""
    models = {name: hvd.shard_parameters(nn.Linear(3, 3)) for name in "ab"}
    named = [(f"{key}.{name}", param) for key, model in models.items() for name, param in model.named_parameters()]
    inner = torch.optim.SGD(itertools.chain(*(model.parameters() for model in models.values())), lr=0.1)
    with pytest.raises(ValueError, match=r"'b\.weight' belongs to another divided model.*torch\.nn\.ModuleList"):
        hvd.DistributedOptimizer(inner, named, sharded="parameters")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", STAGES)
def test_horovod_s_broadcasts(stage: str, rank: int, n: int) -> None:
    """The optimizer's state reaches all; of a divided model no rank has the parameters: it says what to do."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)
    hvd.broadcast_optimizer_state(twins.optimizer, root_rank=0)
    if stage == "gradients":
        hvd.broadcast_parameters(twins.model.state_dict(), root_rank=0)
    else:
        with pytest.raises(RuntimeError, match=r"hvd\.full_parameters"):
            hvd.broadcast_parameters(twins.model.named_parameters(), root_rank=0)
    twins.go_on(range(1, 3))
    twins.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("stage", "when"), diagonal(STAGES, ["before", "after"]))
def test_a_state_that_one_rank_alone_has_loaded(stage: str, when: str, rank: int, n: int) -> None:
    """As Horovod's scripts do it on rank 0: the others' parts would go on without. All are told, in whichever call."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)
    state = twins.optimizer.state_dict()

    def adam(params: Any) -> torch.optim.Optimizer:
        found = OPTIMIZERS["Adam"](params)
        if when == "before" and rank == 0:
            found.load_state_dict(copy.deepcopy(state))
        return found

    again = Twins(stage, net, adam)
    if when == "after" and rank == 0:
        again.optimizer.load_state_dict(copy.deepcopy(state))
    with pytest.raises(RuntimeError, match=r"some ranks have none.*Call it on all ranks"):
        hvd.broadcast_optimizer_state(again.optimizer, root_rank=0)
    again.loss(again.model, 1, [rank]).backward()
    with pytest.raises(MismatchError, match=r"(?s)rank 0: 0 updates.*state was loaded.*rank 1: 0.*on all ranks"):
        again.optimizer.step()
    again.optimizer.load_state_dict(copy.deepcopy(state))
    again.optimizer.zero_grad()
    hvd.load_full_state_dict(again.model, hvd.full_state_dict(twins.model))
    again.twin, again.reference = twins.twin, twins.reference
    again.step(1)
    again.check()
    again.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", STAGES)
def test_one_rank_s_parameters_lie_otherwise(stage: str, rank: int, n: int) -> None:
    """Another order in memory on one rank: parts of it would be other elements. All are told where."""
    model = nn.Conv2d(2, 2, 2)
    if rank:
        model.to(memory_format=torch.channels_last)
    divide = {
        "parameters": lambda: hvd.shard_parameters(model),
        "gradients": lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters()), sharded=stage),
    }[stage]
    words = r"number 0:\n  rank 0: .*: \(2, 2, 2, 2\) torch.float32\n  rank 1: .*, strides \(8, 1, 4, 2\)"
    with pytest.raises(MismatchError, match=words):
        divide()


def test_adagrad_with_divided_parameters_is_told_another_stage(n: int) -> None:
    """Adagrad makes its state of whole parameters, then divided: the error names a stage that takes it."""
    model = hvd.shard_parameters(torch.nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="Adagrad does, needs whole parameters: take sharded='gradients'"):
        torch.optim.Adagrad(model.parameters(), 0.1)
