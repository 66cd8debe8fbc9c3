"""LocalSGD and DiLoCo on real ranks, against synchronous SGD, against each other, and against the paper's formula."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from counted import bytes_sent
from serial import MAKES, batches, mse, one_step, train_alike, twins
from thorough import diagonal
from torch import nn

import workbench.torch as hvd
from workbench.errors import CollectiveError, MismatchError

Wrap = Callable[[torch.optim.Optimizer], Any]
ALIKE: dict[str, Wrap] = {
    "LocalSGD": lambda inner: hvd.LocalSGD(inner, every=1),
    "DiLoCo": lambda inner: hvd.DiLoCo(inner, outer_lr=1.0, momentum=0.0, every=1),
}
BOTH: dict[str, Wrap] = {
    "LocalSGD": lambda inner: hvd.LocalSGD(inner, every=4),
    "DiLoCo": lambda inner: hvd.DiLoCo(inner, every=4),
}


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    """Without momentum."""
    return torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=lr)


def train(model: nn.Module, optimizer: Any, steps: int, n: int, first: int = 0) -> None:
    """Each rank on its part of every batch."""
    for batch in list(batches(n, first + steps))[first:]:
        one_step(model, optimizer, batch)


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters in a row."""
    return torch.cat([param.detach().reshape(-1) for param in model.parameters()])


def equal_everywhere(model: nn.Module) -> bool:
    """Have all ranks the same bits?"""
    everyone = hvd.allgather(flat(model)[None], name="everyone")
    return bool((everyone == everyone[0]).all())


@pytest.mark.parametrize(("wrap", "make"), diagonal(ALIKE, ["plain", "SGD"]))
def test_an_exchange_in_every_step_is_synchronous_sgd(wrap: str, make: str, n: int) -> None:
    """With H = 1 it is the serial run on the whole batch, to 1e-12 after each step, with momentum as well."""
    model, serial = twins()
    inner, reference = (sgd(one) if make == "plain" else MAKES[make](one.parameters()) for one in (model, serial))
    optimizer = ALIKE[wrap](inner)
    train_alike(model, optimizer, serial, reference, batches(n))


def test_local_sgd_averages_what_the_ranks_have_come_to(n: int) -> None:
    """After H steps the weights are the average of n trainings, each of which every rank repeats by itself."""
    model, begin = twins()
    train(model, hvd.LocalSGD(sgd(model), every=4), 4, n)
    ends = []
    for rank in range(n):
        alone = copy.deepcopy(begin)
        optimizer = sgd(alone)
        for x, y in batches(n, 4):
            optimizer.zero_grad()
            mse(alone, x[rank::n], y[rank::n]).backward()
            optimizer.step()
        ends.append(flat(alone))
    assert (flat(model) - torch.stack(ends).mean(0)).abs().max() < 1e-12


def test_diloco_is_the_paper_s_formula(n: int) -> None:
    """Start ← start - lr (change + momentum v), v ← momentum v + change, where change is start minus the average."""
    lr, momentum = 0.7, 0.9
    model, other = twins()
    optimizer = hvd.DiLoCo(sgd(model), outer_lr=lr, momentum=momentum, every=3)
    start = flat(other)
    velocity = torch.zeros_like(start)
    for exchange in range(4):
        nn.utils.vector_to_parameters(start.clone(), other.parameters())
        train(other, hvd.LocalSGD(sgd(other), every=3), 3, n, first=3 * exchange)
        change = start - flat(other)
        velocity = momentum * velocity + change
        start = start - lr * (change + momentum * velocity)
        train(model, optimizer, 3, n, first=3 * exchange)
        assert (flat(model) - start).abs().max() < 1e-12


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrap", BOTH)
def test_between_two_exchanges_the_ranks_go_their_own_ways(wrap: str, n: int) -> None:
    """Nothing travels, and the weights differ; after the H-th step, and after synchronize(), all bits are equal."""
    model, _ = twins()
    optimizer = BOTH[wrap](sgd(model))
    for step in range(10):
        sent = bytes_sent(partial(train, model, optimizer, 1, n, first=step))
        exchanged = 8 * sum(param.numel() for param in model.parameters() if param.requires_grad)
        few = 1000  # who begins, and how many steps it were
        assert (sent > exchanged) == ((step + 1) % 4 == 0)
        assert sent < (exchanged + few if (step + 1) % 4 == 0 else few)
        assert equal_everywhere(model) == ((step + 1) % 4 == 0)
    optimizer.synchronize()
    assert equal_everywhere(model)
    same = flat(model)
    optimizer.synchronize()  # nothing has changed, so nothing is exchanged
    assert torch.equal(flat(model), same)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrap", BOTH)
def test_uneven_ends_are_named(wrap: str, rank: int, n: int) -> None:
    """Rank 0 has made 7 steps, the others 6, when they synchronize: all hear who has made how many."""
    model, _ = twins()
    optimizer = BOTH[wrap](sgd(model))
    train(model, optimizer, 7 if rank == 0 else 6, n)
    told = ", ".join(f"rank {each}: {3 if each == 0 else 2}" for each in range(n))
    before = flat(model)
    with pytest.raises(MismatchError, match=rf"different numbers of steps .*\({told}\)\. Give every rank equally many"):
        optimizer.synchronize()
    assert torch.equal(flat(model), before)


@pytest.mark.ranks(2)
def test_one_rank_ends_while_another_steps(rank: int, n: int) -> None:
    """What meets a step's exchange is the same as what meets synchronize()'s: the error says 4 steps and 2."""
    model, _ = twins()
    optimizer = hvd.LocalSGD(sgd(model), every=4)
    train(model, optimizer, 3 if rank == 0 else 2, n)
    last = optimizer.synchronize if rank else lambda: train(model, optimizer, 1, n, first=3)
    with pytest.raises(MismatchError, match=r"rank 0: 4, rank 1: 2"):
        last()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrap", BOTH)
def test_two_of_them_in_unlike_order_are_not_mixed(wrap: str, rank: int, n: int) -> None:
    """Two models of equal shapes: where rank 0 begins with one, and the others with the other, all get an error."""
    pairs = [(model, BOTH[wrap](sgd(model))) for model in twins()]
    with torch.no_grad():
        pairs[1][0].head.weight.add_(1.0)

    def train_both() -> None:
        for model, optimizer in pairs if rank == 0 else pairs[::-1]:
            train(model, optimizer, 4, n)

    with pytest.raises(CollectiveError, match=r"another order|in the same order"):
        train_both()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrap", BOTH)
def test_two_of_them_in_one_order(wrap: str, n: int) -> None:
    """Each is as if it were alone, also if a rank has made a third, which it does not use."""
    pairs = [(model, BOTH[wrap](sgd(model))) for model in twins()]
    unused = BOTH[wrap](sgd(nn.Linear(3, 2))) if hvd.rank() == 0 else None
    for step in range(8):
        for model, optimizer in pairs:
            train(model, optimizer, 1, n, first=step)
    assert all(equal_everywhere(model) for model, _ in pairs)
    assert torch.equal(flat(pairs[0][0]), flat(pairs[1][0]))
    del unused


@pytest.mark.ranks(2)
def test_diloco_needs_one_start(rank: int, n: int) -> None:
    """Ranks with other weights would differ for ever: they hear of it before the first step."""
    torch.manual_seed(rank)
    model = nn.Linear(3, 2)
    optimizer = hvd.DiLoCo(sgd(model))
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(MismatchError, match=r"begin with different weights.*broadcast_parameters"):
        optimizer.step()


@pytest.mark.parametrize("wrap", BOTH)
def test_a_state_goes_on_as_if_nothing_had_been(wrap: str, n: int) -> None:
    """Saved on each rank in the middle of H steps, with an inner Adam: to the bit the training without a break."""
    model, _ = twins()
    adam = MAKES["Adam"]
    optimizer = BOTH[wrap](adam(model.parameters()))
    train(model, optimizer, 6, n)
    again = copy.deepcopy(model)
    state = copy.deepcopy(optimizer.state_dict())
    other = BOTH[wrap](adam(again.parameters()))
    other.load_state_dict(state)
    assert other.state_dict()["exchanges"]["done"] == 2  # also before it has gone on
    train(model, optimizer, 5, n, first=6)
    train(again, other, 5, n, first=6)
    assert torch.equal(flat(model), flat(again))
    adam(model.parameters()).load_state_dict(state)  # and the wrapped optimizer takes it without the wrapper


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrap", BOTH)
def test_elastic_state_brings_a_new_rank_to_where_the_others_are(wrap: str, rank: int, n: int) -> None:
    """TorchState's sync gives every rank rank 0's weights, inner state, outer momentum and count of steps."""
    model, _ = twins()
    optimizer = BOTH[wrap](MAKES["Adam"](model.parameters()))
    state, alone = hvd.elastic.TorchState(model, optimizer, step=0), hvd.add_process_set([0])
    if rank == 0:  # the others are new: they have made none of these 6 steps
        optimizer._set = alone
        train(model, optimizer, 6, n)
        optimizer._set = hvd.global_process_set
    hvd.remove_process_set(alone)
    state.sync()
    train(model, optimizer, 2, n, first=6)  # the third and fourth step since the exchange
    assert equal_everywhere(model)


@pytest.mark.processes("shutdown() and init() are of the whole process")
def test_a_new_job_begins_a_new_round(n: int) -> None:
    """After shutdown and init the count begins at 0 with the weights of now."""
    model, _ = twins()
    optimizer = hvd.LocalSGD(sgd(model), every=4)
    train(model, optimizer, 3, n)
    hvd.shutdown()
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    train(model, optimizer, 4, n, first=3)
    assert equal_everywhere(model)


@pytest.mark.parametrize("wrap", BOTH)
def test_schedulers_see_the_optimizer_that_they_know(wrap: str, n: int) -> None:
    """A learning-rate scheduler changes the inner rate, and counts the steps."""
    model, _ = twins()
    optimizer = BOTH[wrap](sgd(model, lr=0.4))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(4):
        train(model, optimizer, 1, n, first=step)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.1
    optimizer.synchronize()
    assert equal_everywhere(model)


@pytest.mark.ranks(2)
def test_a_process_set(rank: int, n: int) -> None:
    """Only its ranks exchange; a rank outside has nobody to wait for."""
    even = hvd.add_process_set(range(0, n, 2))
    model, _ = twins()
    if rank % 2 == 0:
        train(model, hvd.LocalSGD(sgd(model), every=2, process_set=even), 4, n)
        everyone = hvd.allgather(flat(model)[None], name="even", process_set=even)
        assert bool((everyone == everyone[0]).all())
    hvd.remove_process_set(even)


def test_frozen_parameters_stay(n: int) -> None:
    """What is not trained is not exchanged: each rank keeps its own."""
    model, _ = twins()
    with torch.no_grad():
        model.frozen.weight.fill_(float(hvd.rank()))
    train(model, hvd.LocalSGD(MAKES["SGD"](model.parameters()), every=2), 2, n)
    assert bool((model.frozen.weight == hvd.rank()).all())


@pytest.mark.parametrize("wrap", ["LocalSGD", "DiLoCo"])
def test_arguments(wrap: str, n: int) -> None:
    """What cannot be is refused, with what can."""
    make = getattr(hvd, wrap)
    inner = sgd(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="every=0: give the number of steps"):
        make(inner, every=0)
    with pytest.raises(ValueError, match=f"{wrap} takes a plain torch optimizer"):
        make(hvd.DistributedOptimizer(inner))
    with pytest.raises(ValueError, match=f"{wrap} exchanges weights .* Use it without DistributedOptimizer"):
        hvd.DistributedOptimizer(make(inner))
    if wrap == "DiLoCo":
        for options in ({"outer_lr": 0.0}, {"momentum": 1.0}):
            with pytest.raises(ValueError, match="give outer_lr > 0 and 0 ≤ momentum < 1"):
                make(inner, **options)
        with pytest.raises(ValueError, match="takes no further parameters"):
            make(inner).add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert repr(make(make(inner, every=3), every=5)).startswith(f"{wrap}(SGD (")  # wrapped once, however often


@pytest.mark.parametrize("wrap", BOTH)
def test_parameters_that_are_unfrozen_later(wrap: str, n: int) -> None:
    """Local SGD averages them from then on; DiLoCo, which has no start of theirs, says so and leaves all as it is."""
    model, _ = twins()
    optimizer = BOTH[wrap](MAKES["SGD"](model.parameters()))
    train(model, optimizer, 4, n)
    model.frozen.requires_grad_(True)
    train(model, optimizer, 3, n, first=4)
    if wrap == "LocalSGD":
        train(model, optimizer, 1, n, first=7)
        assert equal_everywhere(model)
    else:
        with pytest.raises(ValueError, match=r"DiLoCo: \d parameters were frozen, unfrozen or added since it began"):
            train(model, optimizer, 1, n, first=7)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrap", BOTH)
def test_parameters_that_one_rank_unfreezes(wrap: str, rank: int, n: int) -> None:
    """All ranks hear of it, and none waits for ever."""
    model, _ = twins()
    optimizer = BOTH[wrap](MAKES["SGD"](model.parameters()))
    train(model, optimizer, 3, n)
    model.frozen.requires_grad_(rank == 0)
    with pytest.raises(MismatchError, match=r"unlike numbers of parameters \(rank 0: \d+, rank 1: \d+"):
        optimizer.synchronize()
