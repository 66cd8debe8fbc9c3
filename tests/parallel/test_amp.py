"""Mixed precision with torch.amp.GradScaler against the serial run: scales, infinities, clipping."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from serial import MAKES, Make, assert_equal, batches, closure_of, distributed, mse, part, twins
from thorough import diagonal
from torch import nn

import workbench.torch as hvd

SCALE = 2.0**10  # a power of two: scaling changes no digit


def scaler_of() -> torch.amp.GradScaler:
    """A scaler that grows every four steps."""
    return torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=4)


@pytest.mark.parametrize(("make", "clipped"), diagonal([*MAKES, "Adam fused"], [True, False], most=1))
def test_grad_scaler_equals_the_serial_run(make: str, clipped: bool, n: int) -> None:
    """synchronize(), unscale, clip, step: the serial run's weights and scale, with an infinity on a rank now and then.

    An infinity on any rank is one on all after the reduction, so all skip the step and halve the scale together.
    """

    def fused(params: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(params, lr=0.01, fused=True)

    of: Make = MAKES.get(make, fused)
    model, serial = twins()
    optimizer, reference = distributed(model, of), of(serial.parameters())
    scaler, its_scaler = scaler_of(), scaler_of()
    scales = []
    for step, (x, y) in enumerate(batches(n, 16)):
        bad = torch.ones(len(x), 1, dtype=torch.float64)
        if step % 6 == 3:
            bad[step % n] = math.inf  # in the rows of one rank
        for net, one, its, rows in ((model, optimizer, scaler, part), (serial, reference, its_scaler, lambda all: all)):
            one.zero_grad()
            its.scale(((net(rows(x)) - rows(y)) * rows(bad)).square().mean()).backward()
            if net is model:
                optimizer.synchronize()
            if clipped:
                its.unscale_(one)
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            if net is model:
                with optimizer.skip_synchronize():
                    its.step(optimizer)
            else:
                its.step(one)
            its.update()
        assert_equal(model, serial, 1e-11)
        assert scaler.get_scale() == its_scaler.get_scale()
        scales.append(scaler.get_scale())
    assert min(scales) < SCALE <= max(scales[-3:]) * 4
    assert len(set(map(tuple, hvd.allgather_object(scales)))) == 1


@pytest.mark.ranks(2)
def test_grad_scaler_without_synchronize_is_an_error(n: int) -> None:
    """GradScaler.step() right after backward() would unscale gradients on their way: it raises, and one can go on."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    scaler = scaler_of()
    x, y = next(batches(n))
    scaler.scale(mse(model, part(x), part(y))).backward()
    with pytest.raises(RuntimeError, match=r"still being sent .* Call optimizer\.synchronize\(\) after backward"):
        scaler.step(optimizer)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    mse(serial, x, y).backward()
    reference.step()
    assert_equal(model, serial)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype, n: int) -> None:
    """Under autocast the parameters stay float32, are the same on every rank, and near the serial run's."""
    model, serial = (net.float() for net in twins(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))))
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    for x, y in batches(n, 10):
        for net, one, rows in ((model, optimizer, part), (serial, reference, lambda all: all)):
            one.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = (net(rows(x.float())) - rows(y.float())).square().mean()
            loss.backward()
            one.step()
    assert_equal(model, serial, 0.02)
    weights = hvd.allgather_object([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for each in weights for a, b in zip(each, weights[0], strict=True))
    assert model[0].weight.dtype is torch.float32


def test_a_closure_with_zero_grad_to_none(n: int) -> None:
    """A closure that drops the gradients each time: step(closure) equals the serial run's, momentum included."""
    model, serial = twins()
    optimizer, reference = distributed(model, num_groups=2), MAKES["SGD"](serial.parameters())
    for x, y in batches(n, 5):
        optimizer.zero_grad(set_to_none=True)
        optimizer.step(closure_of(model, optimizer, part(x), part(y)))
        reference.step(closure_of(serial, reference, x, y))
        assert_equal(model, serial)
