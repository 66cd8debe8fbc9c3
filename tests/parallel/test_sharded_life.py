"""A sharded optimizer as an object: weights that a script changes, made again, refused, replaced, and broken off."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bag import MAKES, STEPS, Pair
from broken_off import broken_off, fail
from thorough import diagonal, quick
from torch import nn

import workbench.torch as hvd


@pytest.mark.parametrize(("who", "sharded"), diagonal(["last", "first", "all"], [True, "gradients"], most=1))
def test_weights_that_are_swapped_and_back(who: str, sharded: bool | str, rank: int, n: int) -> None:
    """An evaluation with other weights, on all ranks or on one, leaves the training and the other ranks alone."""
    pair = Pair(n, MAKES["Adam"], sharded=sharded)
    for step in range(STEPS):
        pair.step(step)
        kept = [param.detach().clone() for param in pair.bag.parameters()]
        swaps = who == "all" or rank == (0 if who == "first" else n - 1)
        for param in pair.bag.parameters() if swaps else ():
            param.data.copy_(torch.full_like(param, float(rank)))
        hvd.barrier()
        for param, value in zip(pair.bag.parameters(), kept, strict=True):
            assert torch.equal(param, torch.full_like(param, float(rank)) if swaps else value)
        hvd.barrier()
        with torch.no_grad():
            for param, value in zip(pair.bag.parameters(), kept, strict=True):
                param.copy_(value)
    pair.check_state()


@pytest.mark.parametrize("sharded", quick([True, "gradients"], "gradients"))
def test_weights_that_all_ranks_change(sharded: bool | str, n: int) -> None:
    """A factor, or a largest norm, counts once, however many ranks apply it to their own copy."""
    pair = Pair(n, sharded=sharded)
    for step in range(STEPS):
        pair.step(step)
        for bag, _, _ in pair.both():
            with torch.no_grad():
                for param in bag.parameters():
                    param.mul_(0.9)
                    param.mul_((2.0 / (param.norm() + 1e-9)).clamp(max=1.0))
    pair.check_state()


@pytest.mark.parametrize(("dropped", "later"), diagonal([False, True], [{"sharded": False}, {"sharded": True}]))
def test_another_optimizer_takes_over(later: dict[str, Any], dropped: bool, n: int) -> None:
    """Made again for the same model, sharded or not, also when the first one is gone; else that says so."""
    pair = Pair(n, sharded=True)
    pair.go_on(range(3))
    old = None if dropped else pair.optimizer
    if dropped:
        del pair.optimizer
        gc.collect()
    pair.wrap(**later)
    pair.reference = pair.make(pair.twin.parameters())
    if old is not None and n > 1:
        with pytest.raises(RuntimeError, match="has taken over"):
            old.step()
        with pytest.raises(ValueError, match="sharded already: make a new torch optimizer"):
            hvd.DistributedOptimizer(old, pair.bag.named_parameters())
    pair.go_on(range(3, STEPS))
    pair.check_state()


WHOLE = ("LBFGS", "Adafactor", "Muon", "SparseAdam")  # those of torch that look at more than one element


@pytest.mark.parametrize(
    ("name", "sharded"), [("LBFGS", "gradients"), ("LBFGS", "parameters"), *((name, True) for name in WHOLE)]
)
def test_optimizers_that_need_whole_parameters(name: str, sharded: bool | str, n: int) -> None:
    """They are refused by name, with the list of those that do not."""
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    inner = getattr(torch.optim, name)([nn.Parameter(torch.ones(2, 2))])
    words = f"sharded={sharded!r} updates slices of parameters, and {name} may need whole ones. Use one of SGD, Adam"
    with pytest.raises(ValueError, match=words):
        hvd.DistributedOptimizer(inner, sharded=sharded)


def test_a_class_of_one_s_own(n: int) -> None:
    """One with another step() is refused; one that only bears another name is not, also as the first of its kind."""

    class Own(torch.optim.RMSprop):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    class Same(torch.optim.Adadelta):
        pass

    param = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="Own may need whole ones"):
        hvd.DistributedOptimizer(Own([param]), sharded=True)
    hvd.DistributedOptimizer(Same([param]), sharded=True)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.topk(0.5)},
        {"num_groups": 2},
        {"groups": 2},
        {"op": hvd.Sum},
        {"op": hvd.Adasum},
    ],
    ids=lambda options: "".join(options),
)
def test_options_that_do_not_go_with_it(options: dict[str, Any], n: int) -> None:
    """Each is refused at once."""
    inner = torch.optim.SGD([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))], lr=0.1)
    words = "sharded=True works only with op=Average, without compression and without groups"
    with pytest.raises(ValueError, match=words):
        hvd.DistributedOptimizer(inner, sharded=True, **options)


def test_grad_scaler_is_refused(n: int) -> None:
    """From the first step on, and before it touches a gradient."""
    pair = Pair(n, sharded=True)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(3):
        pair.bag.zero_grad()
        scaler.scale(pair.bag.loss([hvd.rank()], step, n)).backward()
        pair.optimizer.synchronize()
        with (
            pair.optimizer.skip_synchronize(),
            pytest.raises(RuntimeError, match="Use bfloat16, which needs no GradScaler"),
        ):
            scaler.step(pair.optimizer)
        pair.optimizer.abandon_step()
        pair.step(step)


def test_a_model_that_is_moved(n: int) -> None:
    """When a parameter gets other memory, the update would miss the model: an error says so, and what to do."""
    pair = Pair(n, sharded=True)
    pair.go_on(range(3))
    if n == 1:
        return
    pair.bag._apply(lambda tensor: tensor.clone())
    pair.optimizer.zero_grad()
    pair.backward(3)
    with pytest.raises(RuntimeError, match=r"memory of parameter '\w.*' has been replaced.*Make a new one"):
        pair.optimizer.step()
    pair.reference.zero_grad()
    pair.wrap()
    pair.reference = pair.make(pair.twin.parameters())
    pair.go_on(range(3, STEPS))


@pytest.mark.ranks(2)
def test_another_job(n: int, job_with: Callable[..., None]) -> None:
    """After shutdown() and init() its state is gone with the other ranks: it says so, and a new one takes over."""
    pair = Pair(n, MAKES["Adam"], sharded=True)
    pair.go_on(range(4))
    state = pair.optimizer.state_dict()
    job_with()
    pair.optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="belongs to a job that has ended"):
        pair.bag.loss([hvd.rank()], 4, n).backward()
    with pytest.raises(RuntimeError, match="belongs to a job that has ended"):
        pair.optimizer.step()
    pair.wrap()
    pair.optimizer.load_state_dict(state)
    pair.go_on(range(4, STEPS))
    pair.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("who", "when"), [("first", "in backward"), ("last", "in step")])
def test_a_rank_that_raises_amid_a_step(who: str, when: str, rank: int, n: int) -> None:
    """Its exception ends the step on all ranks, none hangs, and the ranks train on from a checkpoint."""
    pair = Pair(n, MAKES["Adam"], sharded=True)
    pair.go_on(range(4))
    weights = {name: value.clone() for name, value in pair.bag.state_dict().items()}
    state = copy.deepcopy(pair.optimizer.state_dict())
    hvd.barrier()
    raises = rank == (0 if who == "first" else n - 1)

    hooks = []
    if raises and when == "in backward":
        hooks.append(pair.bag.get_parameter("always").register_hook(fail))
    if raises and when == "in step":
        hooks.append(pair.optimizer.register_step_pre_hook(fail))
    pair.optimizer.zero_grad()

    def step() -> None:
        pair.bag.loss([rank], 4, n).backward()
        pair.optimizer.step()

    broken_off(step, hooks)
    pair.optimizer.abandon_step()
    pair.bag.load_state_dict(weights)
    pair.optimizer.load_state_dict(state)
    hvd.barrier()
    pair.go_on(range(4, STEPS))
    pair.check_state()
