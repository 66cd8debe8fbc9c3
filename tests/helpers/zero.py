"""Models that all ranks train in parts, and their serial twins, for tests of ZeRO 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import workbench.torch as hvd
from workbench.job.process_sets import ProcessSet, global_process_set

STAGES = ["gradients", "parameters"]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1),
    # Where a gradient is nothing but rounding, which differs between processors, Adam makes whole steps of it: an
    # attention's bias of keys has one. With a larger eps they are small.
    "Adam": lambda params: torch.optim.Adam(params, lr=0.02, weight_decay=0.1, eps=1e-3),
}
TOLERANCE, PER_RANK, INPUTS = 1e-12, 3, 7


def net() -> nn.Module:
    """Sizes that no number of ranks divides; one layer in place, one used twice."""
    torch.manual_seed(0)
    twice = nn.Linear(13, 13)
    layers = [nn.Linear(INPUTS, 13), nn.Tanh(), twice, nn.ReLU(inplace=True), twice, nn.Linear(13, 5)]
    return nn.Sequential(*layers).double()


class Mixed(nn.Module):
    """Frozen, unused, tied and empty parameters, BatchNorm's buffers, an attention, one layer in float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(INPUTS, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.half_frozen = nn.Linear(8, 8)
        self.half_frozen.weight.requires_grad_(False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.tied = nn.Linear(INPUTS, 8, bias=False)
        self.tied.weight = self.first.weight
        self.unused = nn.Linear(3, 3)
        self.some_ranks = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))  # of the model itself
        self.empty = nn.Parameter(torch.ones(0, 3))
        self.register_buffer("seen", torch.zeros(2))
        self.last = nn.Linear(8, 4)
        self.double()
        self.narrow = nn.Linear(INPUTS, 1)  # in float32, and its rounding reaches no other parameter

    def forward(self, x: torch.Tensor, extra: bool = False) -> torch.Tensor:
        """With ``extra`` one more layer takes part."""
        h = self.half_frozen(torch.tanh(self.frozen(torch.tanh(self.first(x)))) * self.scale) + self.tied(x)
        h = self.attention(h[:, None], h[:, None], h[:, None], need_weights=False)[0][:, 0]
        if extra:
            h = h + self.some_ranks(h)
        return torch.cat([self.last(h), self.narrow(x.float()).double()], dim=1)


class Checkpointed(nn.Module):
    """Its blocks are computed again amid backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(INPUTS, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2))
        self.last = nn.Linear(8, 5)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As any."""
        h = self.first(x)
        for block in self.blocks:
            h = h + checkpoint(block, h, use_reentrant=False)
        return self.last(h)


def batch(step: int, ranks: Iterable[int], n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of some ranks in a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(n, PER_RANK, INPUTS, generator=generator, dtype=torch.float64)
    y = torch.randn(n, PER_RANK, 5, generator=generator, dtype=torch.float64)
    chosen = list(ranks)
    return x[chosen].flatten(0, 1), y[chosen].flatten(0, 1)


class Twins:
    """A model that is trained in parts, and one that is trained serially on the samples of all ranks.

    Args:
        stage: ``gradients`` or ``parameters``.
        make: the model.
        optimizer: of parameters an optimizer.
        members: the ranks that train together; default: all.
        process_set: of them.
    """

    def __init__(
        self,
        stage: str,
        make: Callable[[], nn.Module],
        optimizer: Callable[[Any], torch.optim.Optimizer],
        members: Sequence[int] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self.stage = stage
        self.members = list(range(hvd.size())) if members is None else list(members)
        self.model, self.twin = make(), make()
        about: dict[str, Any] = {"process_set": process_set}
        if stage == "parameters":
            hvd.shard_parameters(self.model, **about)
            about = {}
        named = self.model.named_parameters()
        self.optimizer: Any = hvd.DistributedOptimizer(
            optimizer(self.model.parameters()), named, sharded=stage, **about
        )
        self.reference = optimizer(self.twin.parameters())

    def both(self) -> tuple[tuple[nn.Module, Any, list[int]], ...]:
        """(model, optimizer, whose samples it takes): the one in parts first."""
        return (self.model, self.optimizer, [hvd.rank()]), (self.twin, self.reference, self.members)

    def loss(self, model: nn.Module, step: int, ranks: Sequence[int]) -> torch.Tensor:
        """The mean over some ranks; in stage 2 the last rank alone uses one of a mixed model's layers."""
        if not isinstance(model, Mixed):
            x, y = batch(step, ranks, hvd.size())
            return (model(x) - y).square().mean()
        total = torch.zeros((), dtype=torch.float64)
        for rank in ranks:
            x, y = batch(step, [rank], hvd.size())
            total = total + (model(x, extra=self.stage == "gradients" and rank == self.members[-1]) - y).square().mean()
        return total / len(ranks)

    def zero_grad(self) -> None:
        """Of both."""
        for _, optimizer, _ in self.both():
            optimizer.zero_grad()

    def backward(self, step: int) -> None:
        """Of both."""
        for model, _, ranks in self.both():
            self.loss(model, step, ranks).backward()

    def both_step(self) -> None:
        """The two optimizers'."""
        for _, optimizer, _ in self.both():
            optimizer.step()

    def step(self, step: int) -> None:
        """One step of both."""
        self.zero_grad()
        self.backward(step)
        self.both_step()

    def go_on(self, steps: Iterable[int]) -> None:
        """These steps of both; all weights are equal after each. All ranks call it."""
        for step in steps:
            self.step(step)
            self.check()

    def check(self) -> None:
        """All weights are equal. All ranks call it."""
        mine = hvd.full_state_dict(self.model)
        for key, its in self.twin.state_dict().items():
            tolerance = TOLERANCE if its.dtype is torch.float64 else 1e-6
            assert torch.allclose(mine[key], its, rtol=0, atol=tolerance), key

    def check_state(self) -> None:
        """The optimizers' states are equal. All ranks call it."""
        mine, its = self.optimizer.state_dict(), self.reference.state_dict()
        assert mine["param_groups"] == its["param_groups"]
        assert mine["state"].keys() == its["state"].keys()
        for number, state in its["state"].items():
            for key, value in state.items():
                other = mine["state"][number][key]
                if isinstance(value, torch.Tensor):
                    assert other.shape == value.shape, (number, key)
                    tolerance = TOLERANCE if value.dtype is torch.float64 else 1e-6
                    assert torch.allclose(other, value, rtol=0, atol=tolerance), (number, key)
                else:
                    assert other == value, (number, key)
