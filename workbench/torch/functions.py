"""The same start on every rank: broadcast of parameters and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from workbench.job import api
from workbench.job.objects import broadcast_object
from workbench.torch import ops, verbs
from workbench.torch.optimizer.initial_zeros import give_zeros_until_step
from workbench.training.step_count import note_broadcast

Params = Mapping[str, Any] | Iterable[Any]


def broadcast_parameters(params: Params, root_rank: int) -> None:
    """Copy the root's tensors into every rank's, in place.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()`` or a list of tensors; the same names in
            the same order of names on every rank.
        root_rank: who has the right values.

    Raises:
        ValueError: something else than these.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> hvd.broadcast_parameters(torch.nn.Linear(2, 1).state_dict(), root_rank=0)
        >>> hvd.shutdown()
    """
    copy_to_all(params, root_rank)
    note_broadcast()


def copy_to_all(params: Params, root_rank: int) -> None:
    """The same for a model that is not the one which is trained."""
    handles = []
    for name, tensor in _named(params):
        # Memory of any layout: what is not contiguous is filled by way of a copy.
        dense = tensor.data if tensor.data.is_contiguous() else tensor.data.contiguous()
        handles.append((tensor, dense, verbs.broadcast_async_(dense, root_rank, f"parameters.{name}")))
    for tensor, dense, handle in handles:
        ops.synchronize(handle)
        if dense.data_ptr() != tensor.data.data_ptr():
            tensor.data.copy_(dense)


def _named(params: Params) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        items: list[Any] = sorted(params.items())
    elif hasattr(params, "__iter__") and not isinstance(params, (str, torch.Tensor)):
        items = [item if isinstance(item, tuple) else (str(i), item) for i, item in enumerate(params)]
    else:
        raise ValueError(f"broadcast_parameters() needs a dict or a list of tensors, not {type(params).__name__}.")
    for name, tensor in items:
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"broadcast_parameters(): {name!r} is a {type(tensor).__name__}, not a tensor. "
                "Use broadcast_object() for it."
            )
    return [(str(name), tensor) for name, tensor in items if tensor is not None]


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Give every rank the root's optimizer state: hyperparameters, counters and tensors of any optimizer.

    Until the next step, parameters without a gradient have zeros as theirs: see
    :mod:`workbench.torch.optimizer.initial_zeros`.

    Args:
        optimizer: built alike on every rank; its state may differ or be empty.
        root_rank: who has the right state.
        model: not needed; ignored; accepted for Horovod compatibility.

    Raises:
        ValueError: the root's optimizer has other parameter groups than this rank's.
    """
    mine = optimizer.state_dict()
    tensors: list[torch.Tensor] = []

    def take(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _Place(len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type)
        return value

    skeleton = broadcast_object(_map(mine, take), root_rank, "optimizer.skeleton")

    def give(value: Any) -> Any:
        if not isinstance(value, _Place):
            return value
        dense = (
            tensors[value.index].contiguous()
            if api.rank() == root_rank
            else torch.empty(value.shape, dtype=value.dtype, device=value.device)
        )
        return verbs.broadcast_(dense, root_rank, f"optimizer.{value.index}")

    # On the root as well: loading may change a state's dtype (NAdam's counters), and the ranks must not differ in that.
    optimizer.load_state_dict(_map(skeleton, give))
    distributed = vars(optimizer).get("_distributed")
    if distributed is None:
        give_zeros_until_step(optimizer)
    elif distributed.zeros is not None:
        distributed.zeros.give()


class _Place:
    """Where a tensor stood in the state, and what is needed to receive it; its device is "cpu", or this rank's GPU."""

    def __init__(self, index: int, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        self.index = index
        self.shape = shape
        self.dtype = dtype
        self.device = device


def _map(value: Any, function: Any) -> Any:
    """Apply ``function`` to the leaves of dicts, lists and tuples."""
    if isinstance(value, dict):
        return {key: _map(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_map(item, function) for item in value)
    return function(value)
