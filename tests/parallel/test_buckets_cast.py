"""Compression.fp16 and bf16 cast whole buckets: the numbers are those of gradients that travel each by its name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from bag import MAKES, STEPS, ZEROS, Bag
from serial import batches, mse, part
from thorough import diagonal, quick
from torch import nn

import workbench.torch as hvd

SMALL = {"BUCKET_BYTES": 200, "EAGER_BYTES": 0}  # several buckets, and no tensor is eager
SHORT = ("fp16", "bf16")


@pytest.fixture(autouse=True)
def in_the_order_of_the_ranks(n: int, in_memory: bool) -> None:
    """Sums that round differ with the order of their terms, which elsewhere depends on the place in an array."""
    if n > 2 and not in_memory:
        pytest.skip("needs memory that the ranks share")


def by_name(compression: Any) -> Any:
    """The same compression, as one that nobody knows: each gradient is cast, sent and cast back by itself."""
    return copy.copy(compression)


def used(bag: Any, step: int, n: int, passes: int = 1) -> None:
    """This rank's gradients of a step."""
    bag.freeze(step)
    for i in range(passes):
        bag.loss([hvd.rank()], step + 100 * i, n).backward()


class Routes:
    """Two copies of a model: one has buckets, in the other gradients travel by name.

    Args:
        make: the model, the same at each call.
        short: name of the compression.
        options: of both DistributedOptimizers.
    """

    def __init__(
        self, make: Callable[[], nn.Module], short: str, optimizer: Any = MAKES["SGD"], **options: Any
    ) -> None:
        compression = getattr(hvd.Compression, short)
        self.models = [make() for _ in range(2)]
        self.optimizers = [
            hvd.DistributedOptimizer(
                optimizer(model.parameters()),
                [(f"{way}.{name}", param) for name, param in model.named_parameters()],
                compression=its,
                **options,
            )
            for way, model, its in zip(("cast", "named"), self.models, (compression, by_name(compression)), strict=True)
        ]

    def step(self, backward: Callable[[Any], None], zero: str = "optimizer, to None") -> None:
        """A step of both."""
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            ZEROS[zero](model, optimizer)
            backward(model)
            optimizer.step()

    def equal(self, what: object = "") -> None:
        """All weights and gradients are, to the last bit."""
        for (name, mine), its in zip(self.models[0].named_parameters(), self.models[1].parameters(), strict=True):
            assert torch.equal(mine, its), (what, name)
            assert (mine.grad is None) == (its.grad is None), (what, name)
            if mine.grad is not None:
                assert mine.grad.dtype is mine.dtype
                assert torch.equal(mine.grad, its.grad), (what, name)

    def buckets(self) -> list[Any]:
        """Of the first; the second has none."""
        found, none = (optimizer._distributed.grads.buckets for optimizer in self.optimizers)
        assert not none
        return list(dict.fromkeys(found.values()))


@pytest.mark.parametrize(("short", "zero", "passes"), diagonal(SHORT, ZEROS, [1, 3], most=2))
def test_patterns_of_use(short: str, zero: str, passes: int, n: int, job_with: Callable[..., None]) -> None:
    """Used by all ranks, by some, in turns, by nobody, frozen and unfrozen, tied, of any layout, in several passes."""
    job_with(**SMALL)
    both = Routes(Bag, short, MAKES["Adam"], backward_passes_per_step=passes)

    for step in range(STEPS):
        both.step(lambda bag, step=step: used(bag, step, n, passes), zero)
        both.equal(step)
    assert n == 1 or len(both.buckets()) > 1


def tower() -> nn.Module:
    """Buckets longer than a segment of the shared memory's reduction, with weights beside biases."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4 if i == 0 else 300, 4 if i == 3 else 300) for i in range(4)))


@pytest.mark.parametrize(("short", "within"), diagonal(SHORT, [False, True]))
def test_a_model_of_some_size(short: str, within: bool, n: int) -> None:
    """Without settings; also where linear layers write their gradients to the buckets."""
    both = Routes(tower, short)
    if within:
        hvd.write_in_buckets(both.models[0], least_bytes=0)
    for x, y in batches(n, 6):
        mine = part(x).float(), part(y).float()
        both.step(lambda model, mine=mine: mse(model, *mine).backward())
        both.equal()
    assert n == 1 or both.buckets()


@pytest.mark.parametrize(
    ("short", "options"), diagonal(SHORT, [{}, {"op": hvd.Sum}, {"gradient_predivide_factor": 4.0}])
)
def test_every_dtype_has_its_buckets(short: str, options: dict[str, Any], n: int) -> None:
    """What is wider is cast, what is short already is sent as it is: each bucket has 2 bytes a number to send."""
    dtypes = [torch.float64, torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.float32]

    def make() -> nn.Module:
        source = torch.Generator().manual_seed(1)
        return nn.ParameterList(torch.randn(40 + i, generator=source).to(dtype) for i, dtype in enumerate(dtypes))

    def backward(params: Sequence[torch.Tensor], step: int) -> None:
        these = [param for i, param in enumerate(params) if (i + hvd.rank()) % 2 or step % 2]
        sum((param.double().sin() * (1 + hvd.rank() / 3)).sum() for param in these).backward()

    both = Routes(make, short, **options)
    for step in range(6):
        both.step(lambda params, step=step: backward(params, step))
        both.equal(step)
    buckets = both.buckets()
    assert {bucket.flat.dtype for bucket in buckets} == (set(dtypes) if n > 1 else set())
    assert all(bucket.array.itemsize == 2 for bucket in buckets)
    assert all(bucket.array.nbytes * bucket.flat.itemsize == bucket.flat.nbytes * 2 for bucket in buckets)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("short", quick(SHORT, "fp16"))
def test_among_some_ranks(short: str, n: int) -> None:
    """In a process set, while a rank outside of it trains alone."""
    some = hvd.add_process_set([0, 1])
    try:
        both = Routes(Bag, short, process_set=some)
        for step in range(STEPS):
            both.step(lambda bag, step=step: used(bag, step, n))
            both.equal(step)
        assert bool(both.buckets()) == some.included()
    finally:
        hvd.remove_process_set(some)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("short", quick(SHORT, "fp16"))
def test_until_the_step_a_gradient_is_the_rank_s_own(short: str, n: int) -> None:
    """What backward has computed stays in ``.grad``, unrounded, though its bucket may be on its way."""
    both = Routes(Bag, short)
    alone = Bag()
    for step in range(STEPS):
        for bag in (both.models[0], alone):
            bag.zero_grad()
            bag.load_state_dict(both.models[0].state_dict())
            used(bag, step, n)
        for (name, mine), its in zip(both.models[0].named_parameters(), alone.parameters(), strict=True):
            if its.grad is not None:
                assert torch.equal(mine.grad, its.grad), (step, name)
        both.optimizers[0].step()
    assert both.buckets()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("short", quick(SHORT, "fp16"))
def test_gradients_that_are_changed_on_their_way(short: str, n: int, job_with: Callable[..., None]) -> None:
    """Whoever writes to a gradient after its bucket was cast is told its name; the next steps are right."""
    job_with(**SMALL)
    both = Routes(Bag, short)
    for step in range(STEPS):
        both.step(lambda bag, step=step: used(bag, step, n))
        both.equal(step)
        assert len(both.buckets()) > 1
        if step in (3, 5):
            for bag, optimizer in zip(both.models, both.optimizers, strict=True):
                optimizer.zero_grad()
                bag.loss([hvd.rank()], step, n).backward()
                bag.get_parameter("always").grad.mul_(2.0)
                with pytest.raises(
                    RuntimeError, match=r"gradient of '\w+\.always' was changed while it was being sent"
                ):
                    optimizer.step()


@pytest.mark.parametrize("short", quick(SHORT, "fp16"))
def test_another_job_and_another_dtype_amid_training(short: str, n: int, job_with: Callable[..., None]) -> None:
    """shutdown() and init(), buckets of other sizes, a model in another dtype: training goes on as by name."""
    job_with(**SMALL)
    both = Routes(Bag, short)
    for step in range(STEPS + 4):
        if step in (3, 6):
            job_with(BUCKET_BYTES={3: 0, 6: 400}[step])
        if step == 9:
            for bag in both.models:
                bag.float()
        both.step(lambda bag, step=step: used(bag, step % STEPS, n))
        both.equal(step)
    assert {bucket.flat.dtype for bucket in both.buckets()} == ({torch.float32} if n > 1 else set())
