"""Hooks into torch: losses, steps, the order of samples."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DistributedSampler, RandomSampler

from workbench.convert.check.record import SEED, Record


@contextlib.contextmanager
def recording(found: Record, steps: int) -> Iterator[None]:
    """Record what happens within it; :class:`Enough` is raised after the last step."""
    torch.manual_seed(SEED)
    backward, begins = torch.Tensor.backward, dict[int, list[Any]]()

    def recorded(self: Any, *args: Any, **options: Any) -> None:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if self.numel() == 1 and not caller.startswith("workbench."):  # which asks autograd for its number of passes
            found.losses.append(float(self.detach()))
        backward(self, *args, **options)

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        begins.setdefault(id(optimizer), _weights(optimizer))

    def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        found.stepped(steps, _weights(optimizer), begins[id(optimizer)])

    hooks = [register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)]
    with (
        patch.object(torch.Tensor, "backward", recorded),
        patch.object(RandomSampler, "__iter__", _order),
        patch.object(DistributedSampler, "set_epoch", _epochs_from_0(found)),
        patch.object(torch.nn.functional, "dropout", _no_dropout(found)),
        patch.object(torch.nn.functional, "batch_norm", _batch_norm_is_seen(found)),
    ):
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _weights(optimizer: torch.optim.Optimizer) -> list[Any]:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return [param.detach().cpu().double().numpy().copy() for param in params]


def _order(self: Any) -> Iterator[int]:
    """The order in which ``DistributedSampler`` shuffles, in its n-th epoch."""
    epoch = self.__dict__.get("_workbench_epoch", 0)
    self.__dict__["_workbench_epoch"] = epoch + 1
    yield from torch.randperm(len(self.data_source), generator=torch.Generator().manual_seed(epoch)).tolist()


def _epochs_from_0(found: Record) -> Any:
    """``set_epoch`` that counts from 0, whatever number the script begins with; without this call each is the first."""
    known: dict[int, tuple[Any, list[int]]] = {}  # by data set, for which a script may make several samplers

    def set_epoch(self: Any, epoch: int) -> None:
        if self.total_size > len(self.dataset):
            found.seen.add("repeated samples")
        _, epochs = known.setdefault(id(self.dataset), (self.dataset, []))
        if epoch not in epochs:
            epochs.append(epoch)
        self.epoch = epochs.index(epoch)

    return set_epoch


def _no_dropout(found: Record) -> Any:
    def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if training and p:
            found.seen.add("dropout")
        return x

    return dropout


def _batch_norm_is_seen(found: Record) -> Any:
    batch_norm = torch.nn.functional.batch_norm

    def seen(*args: Any, **options: Any) -> Any:
        found.seen.add("batch norm")
        return batch_norm(*args, **options)

    return seen
