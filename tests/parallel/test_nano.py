"""The optimizer of ``examples/nano.py`` beside the real one and the serial run: the same weights after every step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from loading import EXAMPLES, load
from serial import MAKES, assert_equal, batches, distributed, mse, part, twins

import workbench.torch as hvd

pytestmark = pytest.mark.processes("a job of nano's in the same processes")

nano = load("nano", EXAMPLES)


@pytest.fixture
def engine() -> Iterator[Any]:
    """This rank's of a job of nano's, in the same processes."""
    with tempfile.TemporaryDirectory(prefix="n") as folder:
        mine = nano.Engine(hvd.rank(), hvd.size(), hvd.broadcast_object(folder), deadline_s=30)
        yield mine
        mine.close()


@pytest.mark.parametrize("make", MAKES)
def test_equals_the_serial_run_and_the_real_optimizer(make: str, engine: Any, n: int) -> None:
    """Tied, frozen and unused parameters included, and a layer that some ranks do not use in some steps."""
    (model, serial), (twin, _) = twins(), twins()
    torch.manual_seed(hvd.rank())
    torch.nn.init.normal_(model.head.weight)
    nano.broadcast_parameters(engine, [("head", model.head.weight)])
    with torch.no_grad():
        serial.head.weight.copy_(model.head.weight)
        twin.head.weight.copy_(model.head.weight)
    optimizer = nano.DistributedOptimizer(engine, MAKES[make](model.parameters()), model.named_parameters())
    real, reference = distributed(twin, MAKES[make]), MAKES[make](serial.parameters())
    for step, (x, y) in enumerate(batches(n)):
        uses = torch.arange(len(x)) % n == step % (n + 1)  # rank n: nobody
        losses = []
        for net, its in ((model, optimizer), (twin, real)):
            its.zero_grad()
            losses.append(mse(net, part(x), part(y), with_extra=part(uses)))
            losses[-1].backward()
            its.step()
        assert abs(losses[0] - losses[1]) <= 1e-12
        reference.zero_grad()
        mse(serial, x, y, with_extra=uses).backward()
        reference.step()
        assert_equal(model, serial)
        assert_equal(twin, serial)
