"""Gradients in buckets, in each mode, against the serial run: whoever uses which parameter when, in any buckets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bag import IMPLEMENTATIONS, MAKES, PARAMS, STEPS, ZEROS, Pair, maker
from thorough import diagonal, once_more, quick
from torch import nn

import workbench.torch as hvd
from workbench.torch.sharded.stage1 import ELEMENTWISE

MODES: dict[str, dict[str, Any]] = {
    "buckets": {},
    "overlap": {"overlap_forward": True},
    "sharded": {"sharded": True},
    "gradients": {"sharded": "gradients"},
}
SMALL = {"BUCKET_BYTES": 500, "PIECE_BYTES": 80, "EAGER_BYTES": 0}  # several buckets, most in several pieces


@pytest.mark.parametrize(("mode", "make", "zero", "passes"), diagonal(MODES, MAKES, ZEROS, [1, 3]))
def test_patterns_of_use(mode: str, make: str, zero: str, passes: int, n: int) -> None:
    """Used by all, by some, in turns, by nobody for a while or for ever, frozen and unfrozen, tied, of any layout.

    After each step weights and gradients are the serial run's, and at the end so is the state: what nobody used was
    touched neither by momentum nor by weight decay.
    """
    pair = Pair(n, MAKES[make], backward_passes_per_step=passes, **MODES[mode])
    for step in range(STEPS):
        pair.step(step, zero, passes)
    pair.check_state()
    before = Pair(1).twin.get_parameter("never")
    assert torch.equal(pair.bag.get_parameter("never"), before)


@pytest.mark.parametrize(("kind", "mode"), diagonal(ELEMENTWISE, MODES, most=5))
def test_every_optimizer(kind: type, mode: str, n: int, job_with: Callable[..., None]) -> None:
    """All that treat each element by itself: weights after each step, and the state at the end, are the serial ones."""
    job_with(**SMALL)
    pair = Pair(n, maker(kind), **MODES[mode])
    for step in range(5):  # the last parameters come in the fourth
        pair.step(step)
    pair.check_state()


@pytest.mark.parametrize(("which", "mode"), diagonal(range(len(IMPLEMENTATIONS)), MODES, most=2))
def test_every_implementation(which: int, mode: str, n: int, job_with: Callable[..., None]) -> None:
    """torch's other ways to step over many parameters do so over buckets, and over slices of them."""
    job_with(**SMALL)
    kind, more = IMPLEMENTATIONS[which]
    pair = Pair(n, maker(kind, **more), **MODES[mode])
    pair.go_on(range(5))
    pair.check_state()


@pytest.mark.parametrize("make", quick(MAKES, "Adam"))
@pytest.mark.parametrize(
    ("mode", "nbytes"),
    [
        *(("buckets", 0), ("buckets", 1), ("sharded", 0)),
        *(once_more(*each) for each in (("buckets", 500), ("overlap", 1), ("gradients", 200))),
        *(once_more("buckets", 200), once_more("sharded", 200)),
        *(once_more(mode, each) for mode in ("sharded", "gradients") for each in (1, 500)),
    ],
)
def test_any_size_of_bucket(mode: str, nbytes: int, make: str, n: int, job_with: Callable[..., None]) -> None:
    """Without buckets, with one for each gradient, and with a few, all over the data plane: the same numbers."""
    job_with(BUCKET_BYTES=nbytes, EAGER_BYTES=0)
    pair = Pair(n, MAKES[make], **MODES[mode])
    pair.go_on(range(STEPS))
    pair.check_state()
    if n > 1 and mode == "buckets":
        buckets = set(pair.optimizer._distributed.grads.buckets.values())
        assert len(buckets) == {0: 0, 1: len(PARAMS) - 2}.get(nbytes, len(buckets))
        assert nbytes == 0 or len(buckets) > 1
    assert mode != "sharded" or (pair.optimizer._distributed.shards is not None) == (n > 1 and nbytes > 0)


@pytest.mark.parametrize(("mode", "tensor"), [("overlap", False), once_more("overlap", True), ("sharded", False)])
def test_groups_and_a_scheduler(mode: str, tensor: bool, n: int) -> None:
    """An update is made with the rates of its step, also where a scheduler has changed them before it is made."""

    def groups(bag: nn.Module) -> list[dict[str, Any]]:
        params = list(bag.parameters())
        rate = torch.tensor(0.05) if tensor else 0.05
        return [{"params": params[::2], "lr": rate}, {"params": params[1::2], "weight_decay": 0.3}]

    pair = Pair(n, MAKES["Adam"], groups, **MODES[mode])
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (pair.optimizer, pair.reference)]
    for step in range(STEPS):
        pair.backward(step)
        pair.both_step()
        for scheduler in schedulers:
            scheduler.step()
        pair.zero_grad()
    pair.check(STEPS)
    pair.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("mode", "first"),
    [
        *((mode, 1) for mode in ("buckets", "sharded")),
        ("overlap", 0),
        *(once_more(mode, 1) for mode in ("overlap", "gradients")),
    ],
)
def test_a_process_set(mode: str, first: int, rank: int, n: int, job_with: Callable[..., None]) -> None:
    """With and without rank 0, which decides what overtakes what: each trains as its serial run, outside alone."""
    job_with(**SMALL)
    members = list(range(first, n)) if first else list(range(n - 1))
    few = hvd.add_process_set(members)
    pair = Pair(n, MAKES["Adam"], among=members if rank in members else [rank], process_set=few, **MODES[mode])
    pair.go_on(range(STEPS))
    if rank in members:
        pair.check_state()
    if mode == "buckets":
        assert bool(pair.optimizer._distributed.grads.buckets) == (rank in members and len(members) > 1)
    assert hvd.remove_process_set(few)


def test_a_gradient_of_others_has_the_parameter_s_order_in_memory(n: int) -> None:
    """Also on ranks that did not use a channels_last weight: fused optimizers read both as they lie."""
    pair = Pair(n, maker(torch.optim.Adam, fused=True))
    for step in range(STEPS):
        pair.step(step)
        param = pair.bag.get_parameter("first rank")
        assert param.grad is not None
        assert param.grad.stride() == param.stride()


@pytest.mark.processes("torch tells the whole process that backward() has run")
@pytest.mark.parametrize(("predivide", "op"), diagonal([4.0, 1.0], [hvd.Average, hvd.Sum]))
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
