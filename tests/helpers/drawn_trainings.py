"""Trainings drawn by a seed: a model, an optimizer, a mode of DistributedOptimizer, and what a script does besides.

The ranks train one together, and each trains its serial twin: the loss is the mean, or the sum, of all members' losses.
In float64 the weights are equal after each step but for rounding.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

import workbench.torch as hvd

TOLERANCE, STEPS, ROWS = 1e-10, 6, 4

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap_forward": {"overlap_forward": True},
    "optimizer": {"sharded": True},
    "gradients": {"sharded": "gradients"},
    "parameters": {"sharded": "parameters"},
    "top-k": {"compression": hvd.Compression.topk(1.0)},  # of all trainings
    "groups": {"num_groups": 2},
    "predivide": {"gradient_predivide_factor": 2.0},
    "sum": {"op": hvd.Sum},
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1),
    "Nesterov": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.8, nesterov=True),
    # Where a gradient is nothing but rounding, a small eps would make whole steps of it.
    "Adam": lambda params: torch.optim.Adam(params, lr=0.02, eps=1e-3),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.02, eps=1e-3, amsgrad=True),
    "fused": lambda params: torch.optim.Adam(params, lr=0.02, eps=1e-3, fused=True),
    "foreach": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, foreach=True),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01, eps=1e-3, momentum=0.5),
}
ZEROS: dict[str, Callable[[nn.Module, Any], None]] = {
    "optimizer": lambda model, optimizer: optimizer.zero_grad(),
    "zeros": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "model": lambda model, optimizer: model.zero_grad(),
}


class Towers(nn.Module):
    """Words, a tower with a layer used twice, and a layer that only one rank uses now and then."""

    def __init__(self, width: int, twice: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(5, width)
        self.first, self.middle, self.last = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 3)
        self.sometimes, self.twice = nn.Linear(3, 3), twice
        self.double()

    def forward(self, words: torch.Tensor, sometimes: bool) -> torch.Tensor:
        """Three numbers a row."""
        x = torch.tanh(self.first(self.words(words)))
        for _ in range(1 + self.twice):
            x = torch.tanh(self.middle(x))
        return self.sometimes(self.last(x)) if sometimes else self.last(x)


class Convolutions(nn.Module):
    """A net of convolutions, in channels_last."""

    def __init__(self, width: int, twice: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, width, 2), nn.Tanh(), nn.Conv2d(width, 2, 2, bias=twice), nn.Flatten())
        self.sometimes = nn.Linear(2, 3)
        self.head = nn.Linear(2, 3)
        self.double().to(memory_format=torch.channels_last)

    def forward(self, words: torch.Tensor, sometimes: bool) -> torch.Tensor:
        """Three numbers a row."""
        x = self.body(torch.sin(words[:, None, None, None] + torch.arange(9.0).double().view(1, 1, 3, 3)))
        return self.head(x) + (self.sometimes(x) if sometimes else 0)


class Training:
    """What a seed stands for.

    Args:
        seed: of the draw, the same on all ranks.
    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        n = hvd.size()
        self.seed = seed
        self.mode = draw.choice(list(MODES))
        self.make = draw.choice(list(OPTIMIZERS))
        self.model = draw.choice([Towers, Convolutions])
        self.about = draw.choice([3, 8]), draw.random() < 0.5
        self.zero = draw.choice(list(ZEROS))
        self.passes = draw.choice([1, 1, 2, 3])
        self.kept = draw.choice(["", "all but the last", "all"])
        self.clip = draw.random() < 0.3
        self.closure = not self.clip and draw.random() < 0.2
        self.between = draw.choice(["", "swap", "one swaps", "average", "factor", "lookahead", "checkpoint"])
        self.dropped = draw.random() < 0.2
        self.scheduled = draw.random() < 0.3
        self.unlike = self.mode != "parameters" and draw.random() < 0.5
        self.few = n > 2 and draw.random() < 0.3
        self.members = list(range(1, n)) if self.few else list(range(n))

    def __repr__(self) -> str:
        return f"Training({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def run(self) -> None:
        """Train both, and compare after each step. All ranks call it."""
        few = hvd.add_process_set(self.members) if self.few else hvd.global_process_set
        inside = hvd.rank() in self.members
        mine = Side(self, [hvd.rank()], few)
        its = Side(self, self.members if inside else [hvd.rank()], None)
        for step in range(STEPS):
            for side in (mine, its):
                side.step(step)
            for key, value in mine.weights().items():
                apart = (value - its.weights()[key]).abs().max().item()
                assert apart <= TOLERANCE, f"{self}: step {step}, {key} is off by {apart:.1e}"
        if self.few:
            hvd.remove_process_set(few)


class Side:
    """The model of a training, and its optimizer.

    Args:
        training: what both sides do.
        ranks: whose samples it takes.
        process_set: whose gradients are reduced; None: the serial one.
    """

    def __init__(self, training: Training, ranks: list[int], process_set: Any) -> None:
        self.training, self.ranks, self.serial = training, ranks, process_set is None
        torch.manual_seed(training.seed)
        self.model: Any = training.model(*training.about)
        options = dict(MODES[training.mode])
        self.divided = training.mode == "parameters" and not self.serial
        if self.divided:
            hvd.shard_parameters(self.model, process_set=process_set)
        self.optimizer: Any = OPTIMIZERS[training.make](self.model.parameters())
        if not self.serial:
            passes = 1 if training.kept else training.passes
            options |= {"backward_passes_per_step": passes} | ({} if self.divided else {"process_set": process_set})
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, self.model.named_parameters(), **options)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5) if training.scheduled else None
        self.slow = [param.clone() for param in self.weights().values()]

    def full(self) -> AbstractContextManager[Any]:
        """Within it the parameters can be looked at and changed."""
        return hvd.full_parameters(self.model) if self.divided else nullcontext()

    def weights(self) -> dict[str, torch.Tensor]:
        """All of them. All ranks call it."""
        return hvd.full_state_dict(self.model) if self.divided else self.model.state_dict()

    def loss(self, step: int, number: int) -> torch.Tensor:
        """Of one backward pass."""
        found = []
        for rank in self.ranks:
            generator = torch.Generator().manual_seed(1000 * step + 10 * number + rank)
            words = torch.randint(0, 5, (ROWS,), generator=generator)
            target = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
            unlike = self.training.unlike and rank == self.training.members[-1] and step % 3 == 1
            found.append((self.model(words, unlike) - target).square().mean())
        total = torch.stack(found).sum()
        return total if self.training.mode == "sum" else total / len(found)

    def backward(self, step: int) -> torch.Tensor:
        """All passes of a step; the loss of the last."""
        training = self.training
        for number in range(training.passes):
            last = number == training.passes - 1
            keep = training.kept == "all" or (training.kept and not last)
            with self.optimizer.no_sync() if keep and not self.serial else nullcontext():
                loss = self.loss(step, number)
                loss.backward()
        return loss

    def step(self, step: int) -> None:
        """One step, and what comes between it and the next."""
        training = self.training
        ZEROS[training.zero](self.model, self.optimizer)
        if training.dropped:
            with nullcontext() if self.serial else self.optimizer.no_sync():
                self.loss(step, 9).backward()
            self.optimizer.zero_grad(set_to_none=training.zero != "zeros")
        if training.closure:

            def closure() -> Any:
                self.optimizer.zero_grad()
                return self.backward(step)

            self.optimizer.step(closure)
        else:
            self.backward(step)
            self.clipped_step() if training.clip else self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()
        if training.between:
            with self.full(), torch.no_grad():
                getattr(self, training.between.replace(" ", "_"))(step)

    def clipped_step(self) -> None:
        """Of gradients whose norm is small."""
        if hasattr(self.optimizer, "clip_grad_norm_"):
            self.optimizer.clip_grad_norm_(0.2)
            self.optimizer.step()
            return
        if not self.serial:
            self.optimizer.synchronize()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.2)
        with nullcontext() if self.serial else self.optimizer.skip_synchronize():
            self.optimizer.step()

    # --- between two steps ----------------------------------------------------------------------------

    def exchanged(self, others: list[torch.Tensor]) -> Iterator[None]:
        """Other weights, and the model's own again."""
        kept = [param.clone() for param in self.model.parameters()]
        for param, other in zip(self.model.parameters(), others, strict=True):
            param.data.copy_(other)
        yield
        for param, own in zip(self.model.parameters(), kept, strict=True):
            param.copy_(own)

    def swap(self, step: int) -> None:
        """An evaluation with the moving average of the weights, on all ranks."""
        for slow, param in zip(self.slow, self.model.parameters(), strict=True):
            slow.lerp_(param, 0.2)
        for _ in self.exchanged(self.slow):
            self.model(torch.arange(5), False)
            if not self.serial:
                hvd.barrier()

    def one_swaps(self, step: int) -> None:
        """An evaluation with other weights on one rank, while the others wait."""
        if self.serial or self.divided or hvd.rank() == step % hvd.size():
            for _ in self.exchanged([torch.full_like(param, 7.0) for param in self.slow]):
                self.model(torch.arange(5), False)
        if not self.serial:
            hvd.barrier()

    def average(self, step: int) -> None:
        """Stochastic weight averaging: after some steps the mean of the weights becomes the model."""
        for slow, param in zip(self.slow, self.model.parameters(), strict=True):
            slow.lerp_(param, 1 / (step + 1))
            if step == STEPS // 2:
                param.copy_(slow)

    def factor(self, step: int) -> None:
        """Weights decay by hand, and a largest norm is kept."""
        for param in self.model.parameters():
            param.mul_(0.95)
            param.mul_((1.5 / (param.norm() + 1e-9)).clamp(max=1.0))

    def lookahead(self, step: int) -> None:
        """Every second step the weights go half the way back to slow ones."""
        if step % 2:
            for slow, param in zip(self.slow, self.model.parameters(), strict=True):
                param.copy_(slow.lerp_(param, 0.5))

    def checkpoint(self, step: int) -> None:
        """Model and optimizer are saved and loaded. All ranks do so."""
        state = copy.deepcopy(self.optimizer.state_dict())
        values = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.optimizer.load_state_dict(state)
        self.model.load_state_dict(values)
