"""sharded=True against the serial run: every optimizer that it takes, and whoever uses which parameter when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bag import IMPLEMENTATIONS, MAKES, STEPS, ZEROS, Pair, maker
from thorough import quick
from torch import nn

import workbench.torch as hvd
from workbench.torch.sharded.stage1 import ELEMENTWISE


def is_sharded(pair: Pair) -> bool:
    """Does each rank update a part only?"""
    return pair.optimizer._distributed.shards is not None


@pytest.mark.parametrize("passes", quick([1, 3], 3))
@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("make", MAKES)
def test_patterns_of_use(make: str, zero: str, passes: int, n: int) -> None:
    """Used by all, by some, in turns, by nobody for a while or for ever, frozen and unfrozen, tied, of any layout.

    After each step the weights are the serial run's, and at the end so is the state of all ranks together.
    """
    pair = Pair(n, MAKES[make], sharded=True, backward_passes_per_step=passes)
    for step in range(STEPS):
        pair.step(step, zero, passes)
    pair.check_state()


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_every_optimizer(kind: type, n: int) -> None:
    """All that treat each element by itself: weights and state are those of the serial run after each step."""
    pair = Pair(n, maker(kind), sharded=True)
    for step in range(STEPS):
        pair.step(step)
        pair.check_state()
    assert is_sharded(pair) == (n > 1)


@pytest.mark.parametrize(("kind", "more"), IMPLEMENTATIONS)
def test_every_implementation(kind: type, more: dict[str, Any], n: int) -> None:
    """torch's other ways to step over many parameters do so over slices."""
    pair = Pair(n, maker(kind, **more), sharded=True)
    for step in range(STEPS):
        pair.step(step)
    pair.check_state()


@pytest.mark.parametrize("nbytes", [1, 200, 500])
@pytest.mark.parametrize("make", MAKES)
def test_any_size_of_bucket(nbytes: int, make: str, n: int, job_with: Callable[..., None]) -> None:
    """One bucket for each gradient, and a few, over the data plane: parameters are cut anywhere, or not at all."""
    job_with(BUCKET_BYTES=nbytes, EAGER_BYTES=0)
    pair = Pair(n, MAKES[make], sharded=True)
    for step in range(STEPS):
        pair.step(step)
    pair.check_state()


def test_without_buckets_it_is_not_sharded(n: int, job_with: Callable[..., None]) -> None:
    """With WORKBENCH_BUCKET_BYTES=0 each rank updates all, and the result is the same."""
    job_with(BUCKET_BYTES=0)
    pair = Pair(n, MAKES["Adam"], sharded=True)
    for step in range(STEPS):
        pair.step(step)
    pair.check_state()
    assert not is_sharded(pair)


def test_groups_and_a_scheduler(n: int) -> None:
    """Parameter groups keep their own rates, and a scheduler changes them, as in the serial run."""

    def groups(bag: nn.Module) -> list[dict[str, Any]]:
        params = list(bag.parameters())
        return [{"params": params[::2], "lr": 0.05}, {"params": params[1::2], "weight_decay": 0.3}]

    pair = Pair(n, MAKES["Adam"], groups, sharded=True)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (pair.optimizer, pair.reference)]
    for step in range(STEPS):
        pair.step(step)
        for scheduler in schedulers:
            scheduler.step()
    pair.check_state()
    assert [group["lr"] for group in pair.optimizer.param_groups] == [0.05 / 16, 0.02 / 16]


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("make", MAKES)
def test_clipping(make: str, zero: str, n: int) -> None:
    """synchronize() brings all gradients to all ranks, also those of parameters that a rank has not used: one norm."""
    pair = Pair(n, MAKES[make], sharded=True)
    for step in range(STEPS):
        for bag, optimizer, _ in pair.both():
            ZEROS[zero](bag, optimizer)
        pair.backward(step)
        pair.optimizer.synchronize()
        norms = [nn.utils.clip_grad_norm_(bag.parameters(), 0.5).item() for bag, _, _ in pair.both()]
        assert norms[0] == pytest.approx(norms[1], rel=1e-12)
        assert norms[1] > 0.5
        for mine, its in zip(pair.bag.parameters(), pair.twin.parameters(), strict=True):
            assert (mine.grad is None) == (its.grad is None)
            assert its.grad is None or torch.allclose(mine.grad, its.grad, rtol=0, atol=1e-12)
        with pair.optimizer.skip_synchronize():
            pair.optimizer.step()
        pair.reference.step()
        pair.check(step)
    pair.check_state()


@pytest.mark.parametrize("make", MAKES)
def test_closure(make: str, n: int) -> None:
    """step(closure) updates with the gradients that the closure computed, and returns the loss over all ranks."""
    pair = Pair(n, MAKES[make], sharded=True)
    for step in range(STEPS):
        losses = []
        for bag, optimizer, ranks in pair.both():
            bag.freeze(step)

            def closure(bag: Any = bag, optimizer: Any = optimizer, ranks: Any = ranks, step: int = step) -> Any:
                optimizer.zero_grad()
                loss = bag.loss(ranks, step, n)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
        pair.check(step)
    pair.check_state()
    assert is_sharded(pair) == (n > 1)


@pytest.mark.ranks(2)
def test_a_process_set(rank: int, n: int) -> None:
    """The members of a set share the update among themselves, and the rank outside trains alone."""
    members = list(range(1, n))
    few = hvd.add_process_set(members)
    pair = Pair(n, MAKES["Adam"], among=members if rank in members else [rank], process_set=few, sharded=True)
    for step in range(STEPS):
        pair.step(step)
    if rank in members:
        pair.check_state()
    assert hvd.remove_process_set(few)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_short_dtypes(dtype: torch.dtype, n: int) -> None:
    """Whole numbers are exact in every dtype: the closed form of a few steps of SGD."""
    param = nn.Parameter(torch.zeros(37, dtype=dtype))
    inner = torch.optim.SGD([param], lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, [("p", param)], sharded=True)
    for _ in range(6):
        optimizer.zero_grad()
        (param * (2.0 * hvd.rank())).sum().backward()
        optimizer.step()
    assert param.tolist() == [-6.0 * (n - 1)] * 37


def test_large_parameters(n: int) -> None:
    """Chunks of several segments are updated by their ranks, and every element is right."""
    net = nn.Linear(700, 701, bias=False, dtype=torch.float64)
    nn.init.zeros_(net.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), sharded=True)
    data = [np.random.default_rng(rank).integers(-8, 8, (701, 700)).astype(np.float64) for rank in range(n)]
    for _ in range(4):
        optimizer.zero_grad(set_to_none=False)
        (net.weight * torch.from_numpy(data[hvd.rank()])).sum().backward()
        optimizer.step()
    np.testing.assert_allclose(net.weight.detach().numpy(), -4 * sum(data) / n, rtol=0, atol=1e-11)
