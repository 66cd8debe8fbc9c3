"""A bag of parameters, each used in a pattern of its own by ranks and steps, and its serial twin.

The distributed loss of a rank is its own; the serial one is the mean over all ranks. So the average of the ranks'
gradients is the serial gradient, and a parameter has a serial gradient just where any rank uses it. In float64 the two
are equal but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

import workbench.torch as hvd

TOLERANCE = 1e-12
STEPS = 8

# (shape, who uses it in which step)
Uses = Callable[[int, int, int], bool]
PARAMS: dict[str, tuple[tuple[int, ...], Uses]] = {
    "always": ((5, 7), lambda rank, step, n: True),
    "never": ((4,), lambda rank, step, n: False),
    "first rank": ((2, 3, 2, 2), lambda rank, step, n: rank == 0),
    "last rank": ((), lambda rank, step, n: rank == n - 1),
    "in turns": ((11,), lambda rank, step, n: rank == step % n),
    "nobody at first": ((2, 3), lambda rank, step, n: step >= 3),
    "nobody at last": ((6, 1), lambda rank, step, n: step < 4),
    "nobody in between": ((1,), lambda rank, step, n: step not in (3, 4)),
    "nothing": ((0, 3), lambda rank, step, n: True),
    "frozen for a while": ((3, 3), lambda rank, step, n: True),
    "frozen at first": ((3, 2), lambda rank, step, n: True),
}


class Bag(nn.Module):
    """The parameters; one of them in channels_last, one that two names stand for."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, (shape, _) in PARAMS.items():
            values = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            if values.dim() == 4:
                values = values.contiguous(memory_format=torch.channels_last)
            self.register_parameter(name, nn.Parameter(values))
        self.register_parameter("tied", self._parameters["always"])
        self.freeze(-1)

    def freeze(self, step: int) -> None:
        """Freeze and unfreeze what is to be frozen in this step."""
        self.get_parameter("frozen for a while").requires_grad_(step not in (4, 5))
        self.get_parameter("frozen at first").requires_grad_(step >= 3)

    def loss(self, ranks: Sequence[int], step: int, n: int, among: Sequence[int] | None = None) -> torch.Tensor:
        """The mean loss of some ranks; ``among``: all that train together, by default all."""
        members = list(among or range(n))
        total = torch.zeros((), dtype=torch.float64)
        for rank in ranks:
            generator = torch.Generator().manual_seed(1000 * step + rank)
            for name, (shape, uses) in PARAMS.items():
                target = torch.randn(shape, generator=generator, dtype=torch.float64)
                if uses(members.index(rank), step, len(members)):
                    param = self._parameters[name]
                    total = total + (param * 1.5 - target).square().sum()
        total = total + self._parameters["tied"].sum() * 0.25 * len(ranks)
        return total / len(ranks)


MAKES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9, weight_decay=0.1),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.02, weight_decay=0.1),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"lr": 0.02, "weight_decay": 0.1},
    "AdamW": {"lr": 0.02, "amsgrad": True},
    "RMSprop": {"lr": 0.01, "centered": True, "momentum": 0.5, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1},
    "ASGD": {"lr": 0.01, "t0": 3, "weight_decay": 0.1},
    "NAdam": {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1},
}


def maker(kind: type, **more: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """Makes an optimizer of this class, with what makes it hard."""
    options = OPTIONS.get(kind.__name__, {"lr": 0.01}) | more
    return lambda params: kind(params, **options)


IMPLEMENTATIONS: list[tuple[type, dict[str, Any]]] = [
    (torch.optim.SGD, {"foreach": True}),
    (torch.optim.SGD, {"maximize": True}),
    (torch.optim.Adam, {"foreach": True}),
    (torch.optim.Adam, {"fused": True}),
    (torch.optim.AdamW, {"fused": True}),
]
"""torch's other ways to step. Not SGD(fused=True): it cannot begin with momentum for some parameters later."""

ZEROS: dict[str, Callable[[nn.Module, Any], None]] = {
    "optimizer, to None": lambda bag, optimizer: optimizer.zero_grad(),
    "optimizer, to zero": lambda bag, optimizer: optimizer.zero_grad(set_to_none=False),
    "model": lambda bag, optimizer: bag.zero_grad(),
}


class Pair:
    """A bag that all ranks train, and its serial twin.

    Args:
        make: of parameters an optimizer.
        groups: of a bag the parameters, or groups of them.
        among: the ranks that train together.
        options: of DistributedOptimizer.
    """

    def __init__(
        self,
        n: int,
        make: Callable[[Any], torch.optim.Optimizer] = MAKES["SGD"],
        groups: Callable[[nn.Module], Any] = lambda bag: bag.parameters(),
        among: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        self.n, self.members, self.options = n, list(among or range(n)), options
        self.make, self.groups = make, groups
        self.bag, self.twin = Bag(), Bag()
        self.wrap()
        self.reference = make(groups(self.twin))

    def wrap(self, **options: Any) -> None:
        """Make a new torch optimizer for the distributed bag, and wrap it."""
        self.options |= options
        inner = self.make(self.groups(self.bag))
        self.optimizer = hvd.DistributedOptimizer(inner, self.bag.named_parameters(), **self.options)

    def both(self) -> tuple[tuple[Bag, Any, list[int]], ...]:
        """(bag, optimizer, ranks whose loss it takes): the distributed one first."""
        return (self.bag, self.optimizer, [hvd.rank()]), (self.twin, self.reference, self.members)

    def backward(self, step: int, passes: int = 1) -> None:
        """The gradients of both."""
        for bag, _, ranks in self.both():
            bag.freeze(step)
            for i in range(passes):
                bag.loss(ranks, step + 100 * i, self.n, self.members).backward()

    def zero_grad(self, zero: str = "optimizer, to None") -> None:
        """Of both."""
        for bag, optimizer, _ in self.both():
            ZEROS[zero](bag, optimizer)

    def both_step(self) -> None:
        """The two optimizers'."""
        for _, optimizer, _ in self.both():
            optimizer.step()

    def step(self, step: int, zero: str = "optimizer, to None", passes: int = 1) -> None:
        """One step of both; then they are equal."""
        self.zero_grad(zero)
        self.backward(step, passes)
        self.both_step()
        self.check(step)

    def go_on(self, steps: Iterable[int]) -> None:
        """These steps of both."""
        for step in steps:
            self.step(step)

    def check(self, step: int) -> None:
        """All parameters and gradients are the serial run's; with ``sharded``, a step may have used gradients up."""
        for (name, mine), its in zip(self.bag.named_parameters(), self.twin.parameters(), strict=True):
            assert torch.allclose(mine, its, rtol=0, atol=TOLERANCE), (step, name)
            if mine.grad is None:
                assert its.grad is None or self.options.get("sharded"), (step, name)
            else:
                assert torch.allclose(mine.grad, its.grad, rtol=0, atol=TOLERANCE), (step, name)

    def check_state(self) -> None:
        """The optimizers' states are equal, in every number and every key. All ranks call it."""
        mine, its = self.optimizer.state_dict(), self.reference.state_dict()
        assert mine["param_groups"] == its["param_groups"]
        assert mine["state"].keys() == its["state"].keys()
        for number, state in its["state"].items():
            assert mine["state"][number].keys() == state.keys()
            for key, value in state.items():
                other = mine["state"][number][key]
                if isinstance(value, torch.Tensor):
                    assert (other.shape, other.dtype) == (value.shape, value.dtype), (number, key)
                    assert torch.allclose(other, value, rtol=0, atol=TOLERANCE), (number, key)
                else:
                    assert other == value, (number, key)
