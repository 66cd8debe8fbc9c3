"""One model trained by all ranks, and its serial twin, which every rank trains by itself on the whole batch.

The loss is a mean over rows and all ranks have the same number of rows, so the average of the ranks' gradients is the
gradient of the whole batch. In float64 the two are equal but for rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch._dynamo  # torch does it in the first step, which would take up to 20 s of that test's minute
from torch import nn

import workbench.torch as hvd

Batch = tuple[torch.Tensor, torch.Tensor]

ROWS, STEPS = 6, 10

Make = Callable[[Any], torch.optim.Optimizer]
MAKES: dict[str, Make] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.1),
}


class Net(nn.Module):
    """Used twice, shared by two layers, frozen, and never used: what real models have."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.twin, self.frozen, self.unused, self.extra, self.head = (nn.Linear(4, 4) for _ in range(6))
        self.twin.weight = self.body.weight  # tied
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.double()

    def forward(self, x: torch.Tensor, with_extra: torch.Tensor | None = None) -> torch.Tensor:
        x = self.body(x).tanh()
        x = self.twin(self.body(x)).tanh() + self.frozen(x)
        if with_extra is not None and bool(with_extra.any()):
            x = torch.where(with_extra.unsqueeze(1), self.extra(x), x)
        return self.head(x)


def batches(n: int, steps: int = STEPS) -> Iterator[Batch]:
    """The whole batch of each step, the same on every rank."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        whole = torch.randn(ROWS * n, 8, generator=generator, dtype=torch.float64)
        yield whole[:, :4], whole[:, 4:]


def part(whole: torch.Tensor) -> torch.Tensor:
    """This rank's rows."""
    return whole[hvd.rank() :: hvd.size()]


def twins(make: Callable[[], nn.Module] = Net) -> tuple[nn.Module, nn.Module]:
    """(this rank's model, the serial one): initialised from the rank's own seed, then the same everywhere."""
    torch.manual_seed(1000 + hvd.rank())
    model = make()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, copy.deepcopy(model)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: Any) -> torch.Tensor:
    """Mean over rows and outputs."""
    return (model(x, **options) - y).square().mean()


def assert_equal(model: nn.Module, serial: nn.Module, tolerance: float = 1e-12) -> None:
    """All parameters are the serial run's, and those with a gradient; or none has one, after a sharded step."""
    used_up = all(param.grad is None for param in model.parameters())
    for (name, mine), its in zip(model.named_parameters(), serial.parameters(), strict=True):
        difference = torch.cat([(mine - its).detach().abs().flatten(), torch.zeros(1)]).max().item()
        assert difference <= tolerance, f"{name} is off by {difference:g}"
        assert used_up or (mine.grad is None) == (its.grad is None), name


def distributed(model: nn.Module, make: Make = MAKES["SGD"], **options: Any) -> hvd.DistributedOptimizer:
    """The usual way to wrap."""
    return hvd.DistributedOptimizer(make(model.parameters()), named_parameters=model.named_parameters(), **options)


def step_alike(
    model: nn.Module,
    optimizer: Any,
    serial: nn.Module,
    reference: Any,
    *passes: Batch,
    set_to_none: bool = True,
    tolerance: float = 1e-12,
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
    uses: torch.Tensor | None = None,
    factor: float = 1.0,
) -> None:
    """One step, each rank on its part of the batches, ``within`` its backward, and the serial run on all: equal then.

    The rows that ``uses`` names take the extra layer, and ``factor`` is that of the ranks' losses.
    """
    optimizer.zero_grad(set_to_none=set_to_none)
    reference.zero_grad(set_to_none=set_to_none)
    for x, y in passes:
        with within():
            (factor * mse(model, part(x), part(y), **({} if uses is None else {"with_extra": part(uses)}))).backward()
        mse(serial, x, y, **({} if uses is None else {"with_extra": uses})).backward()
    optimizer.step()
    reference.step()
    assert_equal(model, serial, tolerance)


def one_step(model: nn.Module, optimizer: Any, batch: Batch) -> None:
    """A rank's step on its part of a batch."""
    optimizer.zero_grad()
    mse(model, *map(part, batch)).backward()
    optimizer.step()


def run(
    n: int,
    make: Make = MAKES["SGD"],
    model_of: Callable[[], nn.Module] = Net,
    steps: int = STEPS,
    set_to_none: bool = True,
    tolerance: float = 1e-12,
    **options: Any,
) -> None:
    """Train both and compare after each step. ``groups`` in the options may be a function of the model."""
    model, serial = twins(model_of)
    if callable(options.get("groups")):
        options["groups"] = options["groups"](model)
    optimizer, reference = distributed(model, make, **options), make(serial.parameters())
    before = copy.deepcopy(serial.state_dict())
    for batch in batches(n, steps):
        step_alike(model, optimizer, serial, reference, batch, set_to_none=set_to_none, tolerance=tolerance)
    changed = [name for name, value in serial.state_dict().items() if not torch.equal(value, before[name])]
    assert len(changed) >= 2, "the test trains nothing"


def closure_of(
    net: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, factor: float = 1.0
) -> Callable[[], torch.Tensor]:
    """What step() calls, as often as it likes."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = factor * mse(net, x, y)
        loss.backward()
        return loss

    return closure


def train_alike(model: nn.Module, optimizer: Any, serial: nn.Module, reference: Any, steps: Iterator[Batch]) -> None:
    """One step for each batch, each rank on its part and the serial run on all of it: equal after every step."""
    for batch in steps:
        step_alike(model, optimizer, serial, reference, batch)


def goes_on(n: int, model: nn.Module, optimizer: hvd.DistributedOptimizer) -> None:
    """From here on training equals a serial run that begins with the same parameters and state, on every rank."""
    states = hvd.allgather_object(model.state_dict())
    assert all(torch.equal(states[0][name], state[name]) for state in states for name in state)
    serial = copy.deepcopy(model)
    reference = MAKES["SGD"](serial.parameters())
    reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train_alike(model, optimizer, serial, reference, batches(n, 3))
