"""What ZeRO 2 and 3 must find right whatever the graph is: several alive, frozen parts, objects, compiled ones."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from thorough import diagonal, quick
from torch import nn
from torch.utils.checkpoint import checkpoint
from zero import INPUTS, OPTIMIZERS, STAGES, Twins, batch, net

import workbench.torch as hvd


class Adapter(nn.Module):
    """A frozen and a trained part in one module, as LoRA has; the frozen one is needed after the trained is done."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.randn(width, width), requires_grad=False)
        self.added = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Not one operation, so the bias has its gradient before the input has."""
        return torch.tanh(x @ self.frozen * 0.3) + self.added


def adapted() -> nn.Module:
    """Frozen and trained parts in turns."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(INPUTS, 6), Adapter(6), Adapter(6), nn.Linear(6, 5)).double()


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_two_graphs_are_alive(stage: str, n: int) -> None:
    """Two forward passes before two backward passes; and one that never gets a backward pass."""
    twins = Twins(stage, adapted, OPTIMIZERS["Adam"])
    for step in range(3):
        twins.zero_grad()
        for model, _, ranks in twins.both():
            losses = [twins.loss(model, 10 * step + i, ranks) for i in range(3)]
            losses[2].backward()
            losses[0].backward()
        twins.both_step()
        twins.check()
    assert stage == "gradients" or not any(flat.unsharded for flat in twins.optimizer._distributed.backward.flats)


@pytest.mark.parametrize("stage", quick(STAGES, "gradients"))
def test_a_graph_is_used_twice(stage: str, n: int) -> None:
    """backward(retain_graph=True), then once more; and gradients of the input by torch.autograd.grad in between."""
    twins = Twins(stage, adapted, OPTIMIZERS["SGD"])
    for step in range(3):
        twins.zero_grad()
        found = []
        for model, _, ranks in twins.both():
            x, y = batch(step, ranks, n)
            x.requires_grad_()
            loss = (model(x) - y).square().mean()
            loss.backward(retain_graph=True)
            found.append(torch.autograd.grad(loss, x, retain_graph=True)[0])
            loss.backward()
        per_rank = len(found[0])
        its = found[1][hvd.rank() * per_rank :][:per_rank] * n
        assert torch.allclose(found[0], its, rtol=0, atol=1e-12)
        twins.both_step()
        twins.check()


@pytest.mark.parametrize(("stage", "alone", "between"), diagonal(STAGES, [False, True], [False, True]))
def test_a_penalty_on_gradients(stage: str, alone: bool, between: bool, n: int) -> None:
    """A backward pass through a backward pass (create_graph=True), with or without one in between."""
    twins = Twins(stage, adapted, OPTIMIZERS["Adam"])
    for step in range(3):
        twins.zero_grad()
        for model, _, ranks in twins.both():
            x, y = batch(step, ranks, n)
            x.requires_grad_()
            out = model(x)
            (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            if between:
                twins.loss(model, 10 + step, ranks).backward()
            penalty = (grad.norm(dim=1) - 1).square().mean()
            (penalty if alone else penalty + (out - y).square().mean()).backward()
        twins.both_step()
        twins.check()
    assert stage == "gradients" or not any(flat.unsharded for flat in twins.optimizer._distributed.backward.flats)


class Reentrant(nn.Module):
    """Blocks computed again by a backward pass within the backward pass, beside parameters that are needed later."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(INPUTS, 8)
        self.scale = nn.Parameter(torch.randn(8))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2))
        self.last = nn.Linear(8, 5)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As any."""
        h = torch.sin(self.first(x) * self.scale)
        for block in self.blocks:
            h = torch.sin(h * self.scale) + checkpoint(block, h, use_reentrant=True)
        return self.last(h) + self.scale[:5]


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_a_backward_pass_within_another(stage: str, n: int) -> None:
    """use_reentrant=True: the inner one's end is not the outer one's."""
    twins = Twins(stage, Reentrant, OPTIMIZERS["Adam"])
    twins.go_on(range(3))


@dataclasses.dataclass
class Output:
    """What a module returns."""

    values: torch.Tensor
    seen: int = 0


class Scaled(nn.Module):
    """Returns an object with a tensor in it."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.linspace(0.5, 2.0, INPUTS, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> Any:
        """Two operations, of which backward needs the weight."""
        return self.kind(values=torch.sin(x * self.weight) * self.weight)


class Around(nn.Module):
    """Takes the tensor out."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.inner = nn.Linear(INPUTS, INPUTS).double(), Scaled(kind)
        self.last = nn.Linear(INPUTS, 5).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As any."""
        return self.last(self.inner(self.first(x)).values)


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_modules_that_return_objects(stage: str, n: int) -> None:
    """A dataclass is looked into; another object is refused, for backward would read memory that is free."""
    twins = Twins(stage, lambda: Around(Output), OPTIMIZERS["SGD"])
    twins.go_on(range(2))
    twins = Twins(stage, lambda: Around(SimpleNamespace), OPTIMIZERS["SGD"])
    if stage == "gradients":
        twins.step(0)
        twins.check()
        return
    with pytest.raises(RuntimeError, match=r"Scaled.forward\(\) returns an object of class SimpleNamespace"):
        twins.loss(twins.model, 0, [hvd.rank()])
    with torch.no_grad():
        twins.loss(twins.model, 0, [hvd.rank()])


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_evaluation_between_all_of_it(stage: str, n: int) -> None:
    """eval() and a forward pass before backward, amid accumulation, before and after the step: the serial run's."""
    twins = Twins(stage, adapted, OPTIMIZERS["Adam"])
    x, _ = batch(9, range(n), n)

    def look() -> None:
        outputs = []
        for model, _, _ in twins.both():
            model.eval()
            with torch.no_grad():
                outputs.append(model(x))
            model.train()
        assert torch.allclose(*outputs, rtol=0, atol=1e-12)

    for step in range(3):
        for i in range(2):
            look()
            twins.backward(2 * step + i)
        look()
        twins.both_step()
        look()
        twins.zero_grad()
        twins.check()


@pytest.mark.processes("torch keeps what autocast has cast for the whole process")
@pytest.mark.parametrize("stage", quick(STAGES, "gradients"))
def test_autocast(stage: str, n: int) -> None:
    """In bfloat16 where torch chooses it, one context around several steps: as DistributedOptimizer on its own."""
    twins = Twins(stage, lambda: net().float(), OPTIMIZERS["SGD"])
    plain = net().float()
    named = [(f"plain.{stage}.{name}", param) for name, param in plain.named_parameters()]
    reference = hvd.DistributedOptimizer(OPTIMIZERS["SGD"](plain.parameters()), named)
    for step in range(3):
        x, y = (each.float() for each in batch(step, [hvd.rank()], n))
        for model, optimizer in ((twins.model, twins.optimizer), (plain, reference)):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
    found = hvd.full_state_dict(twins.model)
    assert all(torch.allclose(found[key], value, rtol=0, atol=1e-6) for key, value in plain.state_dict().items())


@pytest.mark.thorough
@pytest.mark.processes("torch compiles for one thread at a time, and says so to the whole process")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_compiled(stage: str, n: int) -> None:
    """torch.compile of the model, with accumulation: equal to the serial run that is not compiled."""
    twins = Twins(stage, adapted, OPTIMIZERS["SGD"])
    compiled = torch.compile(twins.model, backend="eager")
    for step in range(4):
        twins.zero_grad()
        for i in range(1 + step % 2):
            for model, ranks in ((compiled, [hvd.rank()]), (twins.twin, twins.members)):
                x, y = batch(2 * step + i, ranks, n)
                (model(x) - y).square().mean().backward()
        twins.both_step()
        twins.check()
