"""sharded=True against the serial run: every optimizer that it takes, and whoever uses which parameter when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from bag import MAKES, STEPS, ZEROS, Pair
from thorough import diagonal, quick
from torch import nn

import workbench.torch as hvd


def is_sharded(pair: Pair) -> bool:
    """Does each rank update a part only?"""
    return pair.optimizer._distributed.shards is not None


@pytest.mark.parametrize(("make", "zero"), diagonal(MAKES, ZEROS, most=1))
def test_clipping(make: str, zero: str, n: int) -> None:
    """synchronize() brings all gradients to all ranks, also those of parameters that a rank has not used: one norm.

    What is put in the place of one before the step counts.
    """
    pair = Pair(n, MAKES[make], sharded=True)
    for step in range(STEPS):
        pair.zero_grad(zero)
        pair.backward(step)
        pair.optimizer.synchronize()
        norms = [nn.utils.clip_grad_norm_(bag.parameters(), 0.5).item() for bag, _, _ in pair.both()]
        assert norms[0] == pytest.approx(norms[1], rel=1e-12)
        assert norms[1] > 0.5
        for mine, its in zip(pair.bag.parameters(), pair.twin.parameters(), strict=True):
            assert (mine.grad is None) == (its.grad is None)
            assert its.grad is None or torch.allclose(mine.grad, its.grad, rtol=0, atol=1e-12)
            for param in (mine, its) if step % 2 and its.grad is not None else ():
                param.grad = param.grad * 0.5
        with pair.optimizer.skip_synchronize():
            pair.optimizer.step()
        pair.reference.step()
        pair.check(step)
    pair.check_state()


@pytest.mark.parametrize("make", quick(MAKES, "Adam"))
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
