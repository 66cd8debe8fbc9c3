"""The state of a sharded optimizer: 1/n on each rank, whole in a checkpoint, at home in any other optimizer."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bag import MAKES, STEPS, Bag, Pair
from thorough import diagonal, once_more, quick
from torch import nn

import workbench
import workbench.torch as hvd

ALL_MAKES = MAKES | {"AdamW": lambda params: torch.optim.AdamW(params, lr=0.02, amsgrad=True)}


def numbers(optimizer: Any) -> int:
    """How many numbers of state this rank has."""
    states = optimizer._distributed.optimizer.state.values()
    return sum(value.numel() for state in states for value in state.values() if value.dim())


@pytest.mark.parametrize("sizes", [[1000, 10, 3000, 1], [7] * 30, [5000]], ids=str)
def test_each_rank_keeps_its_part(sizes: list[int], n: int, job_with: Callable[..., None]) -> None:
    """State and slices are at most 1/n of the whole, and a little for each bucket; together they are all of it."""
    job_with(BUCKET_BYTES=10_000)
    params = [nn.Parameter(torch.zeros(size)) for size in sizes]
    inner = torch.optim.Adam(params)
    optimizer = hvd.DistributedOptimizer(inner, sharded=True)
    for _ in range(3):
        optimizer.zero_grad()
        sum(param.sum() for param in params).backward()
        optimizer.step()
    if n == 1:
        return
    total, buckets = sum(sizes), len(set(optimizer._distributed.grads.buckets.values()))
    slices = sum(param.numel() for group in inner.param_groups for param in group["params"])
    for mine, whole in ((numbers(optimizer), 2 * total), (slices, total)):
        # In a bucket each gradient begins on a cache line, so there may be 15 empty places behind each.
        assert mine <= -(-whole // n) + 2 * (buckets + 15 * len(sizes))
        assert hvd.allreduce(torch.tensor([mine]), op=hvd.Sum).item() == whole


@pytest.mark.parametrize("name", quick(ALL_MAKES, "Adam"))
def test_a_checkpoint_is_a_plain_optimizers(name: str, n: int) -> None:
    """It survives torch.save, loads into a plain optimizer, and this one then trains on as the serial run does."""
    make = ALL_MAKES[name]
    pair = Pair(n, make, sharded=True)
    pair.go_on(range(STEPS))
    saved = io.BytesIO()
    torch.save((pair.bag.state_dict(), pair.optimizer.state_dict()), saved)
    saved.seek(0)
    weights, state = torch.load(saved)
    plain = Bag()
    plain.load_state_dict(weights)
    inner = make(plain.parameters())
    inner.load_state_dict(state)
    for step in range(STEPS, STEPS + 3):
        for bag, optimizer in ((plain, inner), (pair.twin, pair.reference)):
            optimizer.zero_grad()
            bag.freeze(step)
            bag.loss(range(n), step, n).backward()
            optimizer.step()
        for mine, its in zip(plain.parameters(), pair.twin.parameters(), strict=True):
            assert torch.allclose(mine, its, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "when"), diagonal(ALL_MAKES, [5, 0, 1], most=2))
def test_a_plain_checkpoint_is_loaded(name: str, when: int, n: int) -> None:
    """Before the first step, after it, and amid training: the next steps are those of who wrote the checkpoint."""
    pair = Pair(n, ALL_MAKES[name], sharded=True)
    pair.go_on(range(when))
    other = Bag()
    writer = ALL_MAKES[name](other.parameters())
    for step in range(4):
        writer.zero_grad()
        other.freeze(step)
        other.loss(range(n), step + 50, n).backward()
        writer.step()
    hvd.barrier()
    for bag, optimizer, _ in pair.both():
        bag.load_state_dict(other.state_dict())
        optimizer.load_state_dict(copy.deepcopy(writer.state_dict()))
    hvd.barrier()
    pair.check_state()
    pair.go_on(range(when, when + 4))
    pair.check_state()


@pytest.mark.parametrize("make", quick(MAKES, "Adam"))
def test_a_checkpoint_goes_from_one_to_the_next(make: str, n: int) -> None:
    """From a sharded optimizer to a new one of the same model, to one that is not sharded, and back again."""
    pair = Pair(n, MAKES[make], sharded=True)
    for step in range(4 * 3):
        if step and step % 3 == 0:
            state = pair.optimizer.state_dict()
            pair.wrap(sharded=step != 6)
            pair.optimizer.load_state_dict(state)
        pair.step(step % 8)
    pair.check_state()


@pytest.mark.parametrize("sharded", [True, "gradients"])
def test_what_is_added_later_is_in_the_checkpoint(sharded: bool | str, n: int) -> None:
    """A group of further parameters is updated as a whole on every rank, or divided, and saved with the others."""
    pair = Pair(n, MAKES["Adam"], lambda bag: [*bag.parameters()][:4], sharded=sharded)
    for step in range(STEPS):
        if step == 4:
            for bag, optimizer, _ in pair.both():
                optimizer.add_param_group({"params": [*bag.parameters()][4:], "lr": 0.05})
        if step == 6:
            state = pair.optimizer.state_dict()
            pair.optimizer.load_state_dict(copy.deepcopy(state))
        pair.zero_grad()
        pair.zero_grad("model")
        pair.backward(step)
        pair.both_step()
        for (name, mine), its in zip(pair.bag.named_parameters(), pair.twin.parameters(), strict=True):
            assert torch.allclose(mine, its, rtol=0, atol=1e-12), (step, name)
    pair.check_state()


@pytest.mark.parametrize("when", [once_more(0), 4])
def test_one_rank_s_state_for_all(when: int, n: int) -> None:
    """broadcast_optimizer_state takes the root's checkpoint to all ranks, whose parts it is then cut into."""
    pair = Pair(n, MAKES["Adam"], sharded=True)
    pair.go_on(range(when))
    if when == 0:  # only the last rank has read a checkpoint
        pair.reference.zero_grad()
        pair.twin.loss(range(n), 0, n).backward()
        pair.reference.step()
        if hvd.rank() == n - 1:
            pair.bag.load_state_dict(pair.twin.state_dict())
            pair.optimizer.load_state_dict(copy.deepcopy(pair.reference.state_dict()))
    hvd.broadcast_parameters(pair.bag.state_dict(), root_rank=n - 1)
    hvd.broadcast_optimizer_state(pair.optimizer, root_rank=n - 1)
    pair.go_on(range(when + 1, when + 5))
    pair.check_state()


def test_all_ranks_have_one_fingerprint(n: int) -> None:
    """fingerprint() of a sharded optimizer compares the whole state, which is one on all ranks."""
    pair = Pair(n, MAKES["Adam"], sharded=True)
    pair.go_on(range(4))
    assert workbench.fingerprint(pair.bag, pair.optimizer)
