"""ZeRO 2 and 3 where ranks do unlike things: what fits together is right, and the rest is an error on all ranks.

Nowhere may a sum, or a layer, be put together of parts that do not belong together without a word.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from all_ranks import wait_for_all
from broken_off import broken_off, fail
from thorough import diagonal, once_more, quick
from torch import nn
from zero import OPTIMIZERS, STAGES, Twins, batch, net

import workbench.torch as hvd
from workbench.errors import CollectiveError, MismatchError, MissingRanksError
from workbench.job.context import HOLDER


def failing_cell(cell: Callable[[], Any], kind: type[Exception], words: str) -> None:
    """A notebook's cell that fails on all ranks; what it has left in flight ends with it."""
    context = HOLDER.get()
    context.cell_begins()
    with pytest.raises(kind, match=words) as caught:
        cell()
    context.cell_raised(f"{kind.__name__}: {caught.value}")
    wait_for_all()
    time.sleep(0.5)  # of what several ranks have raised at a time each is told later, and nobody says when
    context.cell_begins()
    hvd.barrier()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_more_passes_on_one_rank(stage: str, rank: int, n: int) -> None:
    """A rank that makes one more backward pass: both are told to make equally many, and the next step is right."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)

    def cell() -> None:
        for _ in range(1 if rank else 2):
            twins.loss(twins.model, 1, [rank]).backward()
        twins.optimizer.step()

    failing_cell(cell, MissingRanksError, "all ranks make the same number of backward passes|all run the same layers")
    twins.go_on(range(1, 3))
    twins.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_a_pass_that_one_rank_has_dropped(stage: str, rank: int, n: int) -> None:
    """zero_grad() on one rank alone between two passes: its part would have one, the other's both. All are told."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)
    for step in range(2):
        twins.loss(twins.model, step, [rank]).backward()
        if rank and not step:
            twins.optimizer.zero_grad()
    words = r"rank 0: 1 updates.*of 2 backward.*\n  rank 1: 1 updates.*of 1 backward(?s:.*)zero_grad\(\) at the"
    with pytest.raises(MismatchError, match=words):
        twins.optimizer.step()
    twins.go_on(range(1, 3))
    twins.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("stage", "empty"), [("gradients", False), once_more("gradients", True), ("parameters", True)])
def test_one_rank_has_no_data(stage: str, empty: bool, rank: int, n: int) -> None:
    """An empty sum, as the errors advise, or in stage 2 no backward pass: its gradients count as zeros."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    for step in range(3):
        if rank:
            twins.loss(twins.model, step, [rank]).backward()
        elif empty:
            (twins.model(batch(step, [0], n)[0]).sum() * 0).backward()
        twins.reference.zero_grad()
        (sum(twins.loss(twins.twin, step, [each]) for each in range(1, n)) / n).backward()
        twins.both_step()
        twins.check()
    twins.check_state()


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_gradients_nowhere(stage: str, n: int) -> None:
    """A step without any gradient changes nothing, as in a serial run: no weight decay, no count of steps."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    for step in range(4):
        twins.zero_grad()
        if step % 2:
            twins.backward(step)
        twins.both_step()
        twins.check()
    twins.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_no_sync_on_one_rank(stage: str, rank: int, n: int) -> None:
    """Ranks may choose differently what they keep, as long as they send equally often."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    for step in range(3):
        twins.zero_grad()
        for i in range(3):
            with twins.optimizer.no_sync() if i == (rank == 0) else nullcontext():
                twins.backward(10 * step + i)
        twins.both_step()
        twins.check()
    twins.check_state()


# --- two models --------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("stage", "unlike"), [("gradients", True), once_more("gradients", False), ("parameters", False)]
)
def test_two_models_of_equal_names(stage: str, unlike: bool, rank: int, n: int) -> None:
    """Both train, with gradients of both in flight; in stage 2, where nothing waits within backward, in any order."""
    pair = [Twins(stage, net, OPTIMIZERS["Adam"]) for _ in range(2)]
    for step in range(3):
        for number in (1, 0) if unlike and rank == 0 else (0, 1):
            pair[number].zero_grad()
            pair[number].backward(2 * step + number)
        for twins in pair:
            twins.both_step()
        for twins in pair:
            twins.check()
    for twins in pair:
        twins.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_two_models_in_unlike_order(stage: str, rank: int, n: int) -> None:
    """One rank trains the first one when another trains the second: an error names both, and none is mixed."""
    pair = [Twins(stage, net, OPTIMIZERS["SGD"]) for _ in range(2)]
    before = [hvd.full_state_dict(twins.model) for twins in pair]

    def cell() -> None:
        for twins in pair if rank else pair[::-1]:
            twins.loss(twins.model, 0, [rank]).backward()
            twins.optimizer.step()

    numbers = [twins.optimizer._distributed.name.split(",")[0] for twins in pair]
    failing_cell(cell, MissingRanksError, rf"(?s)({numbers[0]}\b.*{numbers[1]}\b|{numbers[1]}\b.*{numbers[0]}\b)")
    for twins, old in zip(pair, before, strict=True):
        found = hvd.full_state_dict(twins.model)
        assert all(torch.equal(found[key], value) for key, value in old.items())
        twins.step(1)
        twins.check()


# --- broken off ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_an_error_amid_backward(stage: str, n: int) -> None:
    """step() and another pass say that a part of the gradients is here; after zero_grad() the next step is right."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)
    hook = twins.model.get_parameter("2.weight").register_hook(fail)
    for again in (twins.optimizer.step, lambda: twins.loss(twins.model, 2, [hvd.rank()]).backward()):
        with pytest.raises(ArithmeticError):
            twins.loss(twins.model, 1, [hvd.rank()]).backward()
        with pytest.raises(RuntimeError, match=r"interrupted a backward pass.*optimizer.zero_grad\(\)"):
            again()
        twins.optimizer.zero_grad()
    hook.remove()
    twins.go_on(range(1, 3))
    twins.check_state()


@pytest.mark.processes("warnings are the whole process's")
@pytest.mark.ranks(2)
@pytest.mark.parametrize(("stage", "clip"), diagonal(STAGES, [False, True]))
def test_a_step_that_one_rank_has_not_made(stage: str, clip: bool, rank: int, n: int) -> None:
    """Then the model is torn, and each later step says so on all ranks, until a checkpoint is loaded."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)
    weights, state = hvd.full_state_dict(twins.model), twins.optimizer.state_dict()
    hooks = [twins.optimizer.register_step_pre_hook(fail)] if rank == n - 1 else []

    def cell() -> None:
        twins.loss(twins.model, 1, [rank]).backward()
        if clip:
            twins.optimizer.clip_grad_norm_(1.0)
        twins.optimizer.step()
        hvd.barrier()

    broken_off(cell, hooks)
    twins.optimizer.zero_grad()
    for _ in range(2):
        twins.loss(twins.model, 1, [rank]).backward()
        words = rf"(?s)rank 0: 2 updates.*rank {n - 1}: 1 updates.*interrupted.*Load a"
        with pytest.raises(MismatchError, match=words):
            twins.optimizer.step()
        twins.optimizer.zero_grad()
    hvd.load_full_state_dict(twins.model, weights)
    twins.optimizer.load_state_dict(state)
    twins.go_on(range(1, 3))
    twins.check_state()


@pytest.mark.processes("warnings are the whole process's")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_a_cell_fails_between_two_passes(stage: str, n: int) -> None:
    """What was accumulated before is dropped on all ranks, with a warning that says so."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)
    twins.loss(twins.model, 5, [hvd.rank()]).backward()
    hvd.barrier()
    failing_cell(fail, ArithmeticError, "on purpose")
    with pytest.warns(UserWarning, match="old gradients are dropped"):
        twins.loss(twins.model, 1, [hvd.rank()]).backward()
    twins.reference.zero_grad()
    twins.loss(twins.twin, 1, twins.members).backward()
    twins.both_step()
    twins.check()


def test_a_layer_that_ctrl_c_has_left_whole(n: int) -> None:
    """Ctrl-C amid a layer's forward pass, on all ranks, leaves it gathered: after a step its values are new."""
    twins = Twins("parameters", net, OPTIMIZERS["SGD"])
    twins.step(0)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = twins.model.get_submodule("2").register_forward_hook(interrupted)
    with pytest.raises(KeyboardInterrupt):
        twins.model(batch(0, [0], n)[0])
    hook.remove()
    twins.go_on(range(1, 4))
    assert not any(flat.unsharded for flat in twins.optimizer._distributed.backward.flats)


@pytest.mark.ranks(2)
def test_one_rank_alone_evaluates(rank: int, n: int) -> None:
    """In stage 3 it waits for the others' parts: all are told that all must run it, and the next step is right."""
    twins = Twins("parameters", net, OPTIMIZERS["SGD"])
    twins.step(0)

    def cell() -> None:
        if rank == 0:
            twins.model(batch(0, [0], n)[0])
        hvd.barrier()

    failing_cell(cell, CollectiveError, "barrier|all run the same layers")
    twins.step(1)
    twins.check()


@pytest.mark.ranks(2)
def test_one_rank_looks_before_the_step(rank: int, n: int) -> None:
    """Between clipping and step() on one rank, after it on the other: old and new values do not make a layer."""
    twins = Twins("parameters", lambda: nn.Linear(7, 5).double(), OPTIMIZERS["SGD"])
    twins.step(0)
    x = batch(0, [0], n)[0]

    def cell() -> None:
        twins.loss(twins.model, 1, [rank]).backward()
        twins.optimizer.clip_grad_norm_(1.0)
        if rank:
            twins.model(x)
        twins.optimizer.step()
        if not rank:
            twins.model(x)

    failing_cell(cell, MissingRanksError, "all run the same layers|make the same number")
