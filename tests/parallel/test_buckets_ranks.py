"""Gradients in buckets against the serial run: whoever uses which parameter when, and whatever the buckets' size."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bag import MAKES, PARAMS, STEPS, ZEROS, Pair, maker
from thorough import quick
from torch import nn

import workbench.torch as hvd


@pytest.mark.parametrize("passes", quick([1, 3], 3))
@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("make", MAKES)
def test_patterns_of_use(make: str, zero: str, passes: int, n: int) -> None:
    """Used by all, by some, in turns, by nobody for a while or for ever, frozen and unfrozen, tied, of any layout.

    After each step weights and gradients are the serial run's, and at the end so is the state: what nobody used was
    touched neither by momentum nor by weight decay.
    """
    pair = Pair(n, MAKES[make], backward_passes_per_step=passes)
    for step in range(STEPS):
        pair.step(step, zero, passes)
    pair.check_state()
    before = Pair(1).twin.get_parameter("never")
    assert torch.equal(pair.bag.get_parameter("never"), before)


def test_a_gradient_of_others_has_the_parameter_s_order_in_memory(n: int) -> None:
    """Also on ranks that did not use a channels_last weight: fused optimizers read both as they lie."""
    pair = Pair(n, maker(torch.optim.Adam, fused=True))
    for step in range(STEPS):
        pair.step(step)
        param = pair.bag.get_parameter("first rank")
        assert param.grad is not None
        assert param.grad.stride() == param.stride()


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("nbytes", [0, 1, 200, 500])
def test_any_size_of_bucket(nbytes: int, make: str, n: int, job_with: Callable[..., None]) -> None:
    """Without buckets, with one for each gradient, and with a few, all over the data plane: the same numbers."""
    job_with(BUCKET_BYTES=nbytes, EAGER_BYTES=0)
    pair = Pair(n, MAKES[make])
    for step in range(STEPS):
        pair.step(step)
    pair.check_state()
    buckets = set(pair.optimizer._distributed.grads.buckets.values())
    if n > 1:
        assert len(buckets) == {0: 0, 1: len(PARAMS) - 2}.get(nbytes, len(buckets))
        assert nbytes == 0 or len(buckets) > 1


@pytest.mark.processes("torch tells the whole process that backward() has run")
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("predivide", [1.0, 4.0])
def test_every_dtype_has_its_buckets(op: Any, predivide: float, n: int) -> None:
    """Parameters of four dtypes in one model: whole-numbered gradients are exact in each, and unused ones stay None."""
    if op is hvd.Sum and predivide != 1.0:
        pytest.skip("refused, see test_optimizer_life.py")
    dtypes = [torch.float64, torch.bfloat16, torch.float32, torch.float16, torch.bfloat16, torch.float64]
    params = [nn.Parameter(torch.zeros(i + 3, dtype=dtype)) for i, dtype in enumerate(dtypes)]
    unused = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    named = [(f"p{i}", param) for i, param in enumerate([*params, unused])]
    inner = torch.optim.SGD([param for _, param in named], lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, named, op=op, gradient_predivide_factor=predivide)
    for step in range(6):
        optimizer.zero_grad()
        users = [r for r in range(n) if r == step % n or step % 2]
        if hvd.rank() in users:
            sum((param * (4 * n)).sum().double() for param in params).backward()
        optimizer.step()
        gradient = 4 * len(users) * (1 if op is hvd.Average else n)
        for param in params:
            assert (param.grad == gradient).all(), (step, param.dtype)
            param.data.zero_()
        assert unused.grad is None


@pytest.mark.ranks(2)
def test_a_process_set(rank: int, n: int) -> None:
    """The members of a set train together, in buckets, and the rank outside trains alone: each as its serial run."""
    members = list(range(1, n))
    few = hvd.add_process_set(members)
    among = members if rank in members else [rank]
    pair = Pair(n, among=among, process_set=few)
    for step in range(STEPS):
        pair.step(step)
    pair.check_state()
    assert bool(pair.optimizer._distributed.grads.buckets) == (rank in members and len(members) > 1)
    assert hvd.remove_process_set(few)


def test_two_optimizers_on_one_model(n: int) -> None:
    """Each has its own part of the model and its own buckets, as for two learning rates: both equal the serial run."""
    halves: list[Callable[[nn.Module], Any]] = [
        lambda bag: [*bag.parameters()][::2],
        lambda bag: [*bag.parameters()][1::2],
    ]
    pair = Pair(n)
    named = list(pair.bag.named_parameters())
    mine = [
        hvd.DistributedOptimizer(MAKES[make](half(pair.bag)), named)
        for make, half in zip(("Adam", "SGD"), halves, strict=True)
    ]
    its = [MAKES[make](half(pair.twin)) for make, half in zip(("Adam", "SGD"), halves, strict=True)]
    for step in range(STEPS):
        for one in (*mine, *its):
            one.zero_grad()
        pair.backward(step)
        for one in (*mine, *its):
            one.step()
        pair.check(step)


def test_a_generator_and_its_critic(n: int) -> None:
    """A GAN: two models and optimizers in turns, the critic frozen while the generator learns from it."""
    torch.manual_seed(0)
    generator, critic = (
        nn.Sequential(nn.Linear(i, 5), nn.Tanh(), nn.Linear(5, o)).double() for i, o in ((3, 4), (4, 1))
    )
    its_generator, its_critic = copy.deepcopy(generator), copy.deepcopy(critic)
    optimizers = [
        hvd.DistributedOptimizer(
            MAKES["Adam"](net.parameters()), [(f"{what}.{k}", p) for k, p in net.named_parameters()]
        )
        for what, net in (("generator", generator), ("critic", critic))
    ]
    references = [MAKES["Adam"](net.parameters()) for net in (its_generator, its_critic)]
    seed = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        noise = torch.randn(2 * n, 3, generator=seed, dtype=torch.float64)
        real = torch.randn(2 * n, 4, generator=seed, dtype=torch.float64)
        rows = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
        for makes, judges, (of_maker, of_judge), z, x in (
            (generator, critic, optimizers, noise[rows], real[rows]),
            (its_generator, its_critic, references, noise, real),
        ):
            of_judge.zero_grad()
            (judges(makes(z).detach()).mean() - judges(x).tanh().mean()).backward()
            of_judge.step()
            judges.requires_grad_(False)
            of_maker.zero_grad()
            (-judges(makes(z)).mean()).backward()
            of_maker.step()
            judges.requires_grad_(True)
        for mine, its in ((generator, its_generator), (critic, its_critic)):
            for one, other in zip(mine.parameters(), its.parameters(), strict=True):
                assert torch.allclose(one, other, rtol=0, atol=1e-12)
