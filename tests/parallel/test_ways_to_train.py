"""How models are trained now, each against an eager serial run, in buckets, and reduced while backward runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from overlap import SMALL, in_buckets, reduced_in_backward, tower, train_overlapped
from serial import MAKES, assert_equal, batches, distributed, goes_on, mse, part, step_alike, twins
from thorough import diagonal
from torch import nn
from torch.utils.checkpoint import checkpoint

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda params, **how: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1, **how),
    "Adam": lambda params, **how: torch.optim.Adam(params, lr=0.01, **how),
    "AdamW": lambda params, **how: torch.optim.AdamW(params, lr=0.01, **how),
}


@pytest.fixture(autouse=True)
def small_buckets(job_with: Callable[..., None]) -> None:
    """Several buckets for a small model."""
    job_with(**SMALL)


@pytest.mark.parametrize(("name", "how", "sharded"), diagonal(OPTIMIZERS, ["foreach", "fused"], [False, True]))
def test_foreach_and_fused(name: str, how: str, sharded: bool, n: int) -> None:
    """An optimizer that updates many parameters in one call, in buckets and in parts of them."""

    def plain(params: Any) -> torch.optim.Optimizer:
        return OPTIMIZERS[name](params, foreach=False)

    def fast(params: Any) -> torch.optim.Optimizer:
        return OPTIMIZERS[name](params, **{how: True})

    train_overlapped(n, fast, its_make=plain, sharded=sharded)


def pictures() -> nn.Module:
    """A network of convolutions in channels_last; the first is the last to get its gradient."""
    layers = [nn.Unflatten(1, (4, 1, 1)), nn.ConvTranspose2d(4, 16, 3), nn.Tanh(), nn.Conv2d(16, 16, 2), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Conv2d(16, 4, 2), nn.Flatten()).double()
    return model.to(memory_format=torch.channels_last)


def test_channels_last(n: int) -> None:
    """Gradients lie in the buckets in their own order in memory, and are reduced from there."""
    train_overlapped(n, model_of=pictures)


def in_bfloat16(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss under autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (model(x.float()) - y.float()).square().mean()


def test_autocast_to_bfloat16(n: int) -> None:
    """The step is that of the whole batch under autocast, but for bfloat16's rounding (2 ** -8)."""
    train_overlapped(n, model_of=lambda: tower().float(), loss=in_bfloat16, tolerance=2**-8)


def test_autocast_part_by_part(n: int) -> None:
    """A serial run that takes the ranks' parts one after the other rounds alike: equal but for float32's rounding."""
    model, serial = (net.float() for net in twins(tower))
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    for x, y in batches(n, 5):
        optimizer.zero_grad()
        reference.zero_grad()
        in_bfloat16(model, part(x), part(y)).backward()
        optimizer.step()
        for rank in range(n):
            (in_bfloat16(serial, x[rank::n], y[rank::n]) / n).backward()
        reference.step()
        # A weight that differs in its last bit may be rounded to the next bfloat16: so no exact equality later on.
        serial.load_state_dict(dict(zip(serial.state_dict(), _checked(model, serial), strict=True)))


def _checked(model: nn.Module, serial: nn.Module) -> list[torch.Tensor]:
    assert_equal(model, serial, 1e-6)
    return [value.clone() for value in model.state_dict().values()]


# --- accumulation -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("set_to_none", "options"), diagonal([True, False], [{}, {"sharded": True}, {"num_groups": 2}])
)
def test_no_sync(set_to_none: bool, options: dict[str, Any], n: int) -> None:
    """Within no_sync() nothing travels; the backward after it sends the sums of all batches while it runs."""
    model, serial = twins(tower)
    optimizer, reference = distributed(model, **options), MAKES["SGD"](serial.parameters())
    reduced = reduced_in_backward(optimizer, next(model.parameters()))
    data = list(batches(n, 12))
    for start in range(0, len(data), 3):
        optimizer.zero_grad(set_to_none=set_to_none)
        reference.zero_grad(set_to_none=set_to_none)
        *first, (x, y) = data[start : start + 3]
        with optimizer.no_sync():
            for one in first:
                (mse(model, *map(part, one)) / 3).backward()
                assert not optimizer._distributed.source.in_flight
        (mse(model, part(x), part(y)) / 3).backward()
        assert optimizer._distributed.source.in_flight == (n > 1)
        optimizer.step()
        for one in data[start : start + 3]:
            (mse(serial, *one) / 3).backward()
        reference.step()
        assert_equal(model, serial)
    assert reduced[0::3] == reduced[1::3] == [0] * 4
    if n > 1:
        assert "num_groups" in options or in_buckets(model, optimizer)
        assert all(reduced[5::3]), reduced


def test_no_sync_and_nothing_after_it(n: int) -> None:
    """A step whose backwards were all within no_sync() takes the sums of all ranks, not this rank's own."""
    model, serial = twins(tower)
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())

    @contextmanager
    def nested() -> Iterator[None]:
        with optimizer.no_sync(), optimizer.no_sync():
            yield

    for batch in batches(n, 4):
        step_alike(model, optimizer, serial, reference, batch, within=nested)


@pytest.mark.ranks(2)
def test_no_sync_too_late(n: int) -> None:
    """A backward within no_sync() after one outside of it adds to what is on its way: an error, and one can go on."""
    model, _ = twins(tower)
    optimizer = distributed(model)
    x, y = next(batches(n))
    mse(model, part(x), part(y)).backward()
    with optimizer.no_sync(), pytest.raises(AssertionError, match=r"all but the last backward\(\) within"):
        mse(model, part(x), part(y)).backward()
    optimizer.abandon_step()
    goes_on(n, model, distributed(model))


# --- activation checkpointing -------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """A tower that keeps no activations of its layers, but computes them once more in backward."""

    def __init__(self, use_reentrant: bool, shared: bool = False) -> None:
        super().__init__()
        self.layers, self._reentrant, self._shared = tower(), use_reentrant, shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()  # or use_reentrant=True computes no gradients for the first layer
        for layer in self.layers:
            for _ in range(1 + (self._shared and layer is self.layers[2])):
                x = checkpoint(layer, x, use_reentrant=self._reentrant)
        return x


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing(use_reentrant: bool, n: int) -> None:
    """Backward that computes a part of forward again, in a backward of its own if it is reentrant."""
    train_overlapped(n, model_of=lambda: Checkpointed(use_reentrant))


def test_checkpointing_a_layer_that_is_used_twice(n: int) -> None:
    """Without reentrance its gradient is finished once."""
    train_overlapped(n, model_of=lambda: Checkpointed(use_reentrant=False, shared=True))


@pytest.mark.ranks(2)
def test_reentrant_checkpointing_of_a_layer_that_is_used_twice(n: int) -> None:
    """Its gradient comes in two parts: an error that says what helps, and within no_sync() the step is right."""
    model, serial = twins(lambda: Checkpointed(use_reentrant=True, shared=True))
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    x, y = next(batches(n))
    with pytest.raises(AssertionError, match="use_reentrant=False does not"):
        mse(model, part(x), part(y)).backward()
    optimizer.abandon_step()
    for batch in batches(n, 4):
        step_alike(model, optimizer, serial, reference, batch, within=optimizer.no_sync)
