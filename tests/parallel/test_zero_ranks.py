"""sharded="gradients" and "parameters" against the serial run: weights, state, checkpoints, models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from bag import MAKES, Pair
from thorough import diagonal, quick
from torch import nn
from zero import OPTIMIZERS, STAGES, Checkpointed, Mixed, Twins, batch, net

import workbench.torch as hvd


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_write_in_buckets(stage: str, n: int) -> None:
    """Linear layers that would write to a bucket find none, and make gradients of their own."""
    twins = Twins(stage, lambda: hvd.write_in_buckets(net(), 0), OPTIMIZERS["SGD"])
    twins.go_on(range(3))


@pytest.mark.parametrize("stage", quick(STAGES, "gradients"))
def test_activation_checkpoints(stage: str, n: int) -> None:
    """A forward pass that is repeated amid backward finds the parameters, and they are freed once."""
    twins = Twins(stage, Checkpointed, OPTIMIZERS["SGD"])
    twins.go_on(range(3))


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_accumulation(stage: str, n: int) -> None:
    """Passes add up in a rank's part, or within no_sync() in whole gradients that the next pass sends."""
    for kept in (0, 1, 2):
        twins = Twins(stage, net, OPTIMIZERS["Adam"])
        for step in range(3):
            twins.zero_grad()
            for i in range(2):
                with twins.optimizer.no_sync() if i < kept else nullcontext():
                    twins.backward(10 * step + i)
            twins.both_step()
            twins.check()


@pytest.mark.parametrize(("stage", "norm_type"), diagonal(STAGES, [1.0, 2.0, float("inf")]))
def test_clipping(stage: str, norm_type: float, n: int) -> None:
    """clip_grad_norm_ over all ranks' parts returns the serial norm, and clips as torch does."""
    twins = Twins(stage, net, OPTIMIZERS["SGD"])
    for step in range(3):
        twins.zero_grad()
        twins.backward(step)
        mine = twins.optimizer.clip_grad_norm_(0.05, norm_type).item()
        its = nn.utils.clip_grad_norm_(twins.twin.parameters(), 0.05, norm_type).item()
        assert mine == pytest.approx(its, rel=1e-12)
        assert its > 0.05
        twins.both_step()
        twins.check()


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_groups_and_a_scheduler(stage: str, n: int) -> None:
    """Parameter groups keep their own rates, and a scheduler changes them."""

    def make(params: Any) -> torch.optim.Optimizer:
        params = list(params)
        groups = [{"params": params[::2], "lr": 0.05}, {"params": params[1::2], "weight_decay": 0.3}]
        return torch.optim.Adam(groups, lr=0.02)

    twins = Twins(stage, net, make)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (twins.optimizer, twins.reference)]
    for step in range(5):
        twins.step(step)
        for scheduler in schedulers:
            scheduler.step()
        twins.check()
    twins.check_state()


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_a_checkpoint_goes_on(stage: str, n: int) -> None:
    """Whole weights and state, loaded into new objects, train on as if nothing had been, and so in a serial run."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.go_on(range(3))
    weights, state = hvd.full_state_dict(twins.model), copy.deepcopy(twins.optimizer.state_dict())
    others = Twins(stage, net, OPTIMIZERS["Adam"])
    others.step(7)  # something else than what is loaded
    hvd.load_full_state_dict(others.model, weights)
    others.optimizer.load_state_dict(copy.deepcopy(state))
    others.twin.load_state_dict(weights)
    others.reference.load_state_dict(copy.deepcopy(state))
    others.check()
    others.go_on(range(3, 5))
    others.check_state()


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_a_checkpoint_amid_accumulation(stage: str, n: int) -> None:
    """Taken between two backward passes it has the weights and the state from before the step, and disturbs neither."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)
    for step in range(1, 3):
        twins.zero_grad()
        with twins.optimizer.no_sync():
            twins.backward(10 * step)
        twins.check()
        twins.check_state()
        twins.backward(10 * step + 1)
        twins.check()
        twins.check_state()
        twins.both_step()
        twins.check()


@pytest.mark.parametrize("stage", quick(STAGES, "gradients"))
def test_schedulers(stage: str, n: int) -> None:
    """Those that change rates, momentum, or look at a loss."""
    makes: list[Callable[[Any], Any]] = [
        lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.1, total_steps=4),
        lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 4),
        lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda epoch: 1 / (1 + epoch)),
        lambda one: torch.optim.lr_scheduler.ReduceLROnPlateau(one, patience=0),
    ]
    for make in makes:
        twins = Twins(stage, net, OPTIMIZERS["Adam"])
        schedulers = [make(one) for one in (twins.optimizer, twins.reference)]
        for step in range(4):
            twins.step(step)
            for scheduler in schedulers:
                plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
                scheduler.step(*[1.0] * plateau)
        twins.check()
        twins.check_state()


@pytest.mark.parametrize("stage", quick(STAGES, "gradients"))
def test_only_one_rank_gets_the_weights(stage: str, rank: int, n: int) -> None:
    """full_state_dict(rank=0) gives the others nothing; keys and values are those of a model that is not divided."""
    twins = Twins(stage, Mixed, OPTIMIZERS["SGD"])
    twins.step(0)
    found = hvd.full_state_dict(twins.model, rank=0)
    if rank:
        assert found == {}
    else:
        assert list(found) == list(twins.twin.state_dict())
        assert all(
            torch.allclose(found[key].double(), value.double()) for key, value in twins.twin.state_dict().items()
        )


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_the_first_rank_s_weights(stage: str, rank: int, n: int) -> None:
    """Ranks that begin with different weights all go on with rank 0's."""

    def own() -> nn.Module:
        torch.manual_seed(100 + hvd.rank())
        return nn.Linear(5, 3).double()

    twins = Twins(stage, own, OPTIMIZERS["SGD"])
    torch.manual_seed(100)
    expected = nn.Linear(5, 3).double().state_dict()
    found = hvd.full_state_dict(twins.model)
    assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_a_process_set(stage: str, rank: int, n: int) -> None:
    """The members of a set share, and the rank outside trains alone."""
    members = list(range(1, n))
    few = hvd.add_process_set(members)
    twins = Twins(stage, net, OPTIMIZERS["Adam"], members if rank in members else [rank], few)
    twins.go_on(range(4))
    twins.check_state()
    assert hvd.remove_process_set(few)


@pytest.mark.parametrize("stage", quick(STAGES, "gradients"))
def test_closure(stage: str, n: int) -> None:
    """step(closure) returns the mean loss, and steps with the gradients that it computed."""
    twins = Twins(stage, net, OPTIMIZERS["SGD"])
    for step in range(2):
        losses = []
        for model, optimizer, ranks in twins.both():

            def closure(model: Any = model, optimizer: Any = optimizer, ranks: Any = ranks, step: int = step) -> Any:
                optimizer.zero_grad()
                loss = twins.loss(model, step, ranks)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
        twins.check()


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_evaluation(stage: str, n: int) -> None:
    """A forward pass without gradients computes the same; afterwards a divided parameter's memory is free again."""
    twins = Twins(stage, net, OPTIMIZERS["SGD"])
    x, _ = batch(3, range(n), n)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.allclose(twins.model(x), twins.twin(x), rtol=0, atol=1e-12)
    if stage == "parameters":
        assert sum(flat.full.untyped_storage().nbytes() for flat in twins.optimizer._distributed.backward.flats) == 0
    twins.step(0)
    twins.check()


@pytest.mark.parametrize(("stage", "dtype"), diagonal(STAGES, [torch.float32, torch.bfloat16, torch.float16]))
def test_short_dtypes(stage: str, dtype: torch.dtype, n: int) -> None:
    """Whole numbers are exact in every dtype: the closed form of a few steps of SGD."""
    model = nn.Linear(37, 1, bias=False, dtype=dtype)
    nn.init.zeros_(model.weight)
    if stage == "parameters":
        hvd.shard_parameters(model)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sharded=stage)
    for _ in range(4):
        optimizer.zero_grad()
        (model(torch.ones(1, 37, dtype=dtype)) * (2.0 * hvd.rank())).sum().backward()
        optimizer.step()
    assert hvd.full_state_dict(model)["weight"].flatten().tolist() == [-4.0 * (n - 1)] * 37


def test_the_first_stage_has_two_names(n: int) -> None:
    """True and "optimizer" are the same."""
    pair = Pair(n, MAKES["SGD"], sharded="optimizer")
    pair.go_on(range(3))
    assert (pair.optimizer._distributed.shards is not None) == (n > 1)
