"""The naive optimizer, which is there to be read: it trains to the same result as the real one."""

from __future__ import annotations

import pytest
import torch
from serial import MAKES, assert_equal, batches, distributed, mse, part, twins

from workbench.torch.naive import NaiveOptimizer


@pytest.mark.parametrize("make", MAKES)
def test_equals_the_serial_run_and_the_real_optimizer(make: str, n: int) -> None:
    """After each step, tied, frozen and unused parameters included."""
    (model, serial), (twin, _) = twins(), twins()
    optimizer = NaiveOptimizer(MAKES[make](model.parameters()), model.named_parameters())
    real, reference = distributed(twin, MAKES[make]), MAKES[make](serial.parameters())
    before = torch.cat([each.detach().flatten() for each in serial.parameters()])
    for x, y in batches(n):
        for each in (optimizer, real, reference):
            each.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(twin, part(x), part(y)).backward()
        real.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)
        assert_equal(twin, serial)
    after = torch.cat([each.detach().flatten() for each in serial.parameters()])
    assert not torch.equal(before, after), "the test trains nothing"
