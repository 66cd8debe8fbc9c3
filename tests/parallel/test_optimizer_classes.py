"""Every optimizer that torch has, from a state that only one rank knew, against the serial run."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from serial import assert_equal, batches, part
from thorough import quick
from torch import nn

import workbench.torch as hvd

OPTIMIZERS = sorted(
    {kind for kind in vars(torch.optim).values() if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)}
    - {torch.optim.Optimizer},
    key=lambda kind: kind.__name__,
)
# One of each kind: plain, with two moments, with scalars in its state, with a closure, sparse, for matrices.
ALWAYS = [getattr(torch.optim, name) for name in ("SGD", "Adam", "ASGD", "SparseAdam", "Muon")]
# Muon computes in bfloat16, so a difference in a gradient's last digit is one of 2**-8 in the step.
TOLERANCES = {"Muon": 1e-3}


class Table(nn.Module):
    """Rows looked up by number, with sparse gradients: all that SparseAdam takes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4, sparse=True, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words((x[:, 0] * 7).long().abs() % 10)


def make(kind: Any, seed: int, lr: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer that can train it, with momentum where there is one."""
    torch.manual_seed(seed)
    model = Table() if kind is torch.optim.SparseAdam else nn.Linear(4, 4, bias=False, dtype=torch.float64)
    momentum = {"momentum": 0.9} if kind in (torch.optim.SGD, torch.optim.RMSprop) else {}
    return model, kind(model.parameters(), lr=lr, **momentum)


def step(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    """One step, with a closure where the optimizer needs one."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    run: Callable[[], Any] = closure
    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(run)
    else:
        run()
        optimizer.step()


@pytest.mark.parametrize("kind", quick(OPTIMIZERS, *ALWAYS), ids=lambda kind: kind.__name__)
def test_every_optimizer_equals_the_serial_run(kind: Any, rank: int, n: int) -> None:
    """Ranks with other weights, states and learning rates take over one rank's, and train on as that rank alone would.

    Three steps: equal on all ranks to the last bit, and to the serial run on the whole batch.
    """
    root = n - 1
    model, inner = make(kind, seed=rank, lr=0.01 * (rank + 1))
    for x, y in batches(1, rank + 1):
        step(model, inner, x, y)
    known = hvd.broadcast_object((model.state_dict(), inner.state_dict()), root_rank=root)
    serial, reference = make(kind, seed=0, lr=1.0)
    serial.load_state_dict(copy.deepcopy(known[0]))
    reference.load_state_dict(copy.deepcopy(known[1]))

    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=root)
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * n)
    before = copy.deepcopy(serial)
    for x, y in batches(n, 3):
        step(model, optimizer, part(x), part(y))
        step(serial, reference, x, y)
        assert_equal(model, serial, TOLERANCES.get(kind.__name__, 1e-9))
    weights = hvd.allgather_object([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(mine, its) for each in weights for mine, its in zip(each, weights[0], strict=True))
    with pytest.raises(AssertionError, match="is off by"):
        assert_equal(model, before, 1e-6)
