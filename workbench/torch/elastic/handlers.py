"""How each kind of value of a :class:`~workbench.torch.elastic.state.TorchState` is saved, restored and synced.

The registry says which type has which *handler*. Anything with ``state_dict()`` and ``load_state_dict()`` has one
(schedulers, gradient scalers); values without one are plain objects.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from workbench.job.objects import broadcast_state
from workbench.torch.elastic.kept import Kept, is_sharded
from workbench.torch.elastic.sampler import ElasticSampler
from workbench.torch.functions import broadcast_optimizer_state, broadcast_parameters
from workbench.torch.optimizer import DistributedOptimizer
from workbench.torch.optimizer.deferred import settle
from workbench.torch.sharded.optimizer import ShardedOptimizer


class StateHandler:
    """Saves, restores and syncs one value of a :class:`TorchState`. To handle a type of your own, subclass it.

    Args:
        value: what the state's attribute holds.

    Attributes:
        root_rank: whose value :meth:`sync` takes; in exact mode a rank's that has the newest commit.
    """

    root_rank = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keep a copy of the value as it is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the last copy, in place."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give every rank what ``root_rank`` has."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt everything that depends on rank and size to the new job."""

    lost = False
    """Has the value lost with other ranks what only the last commit has? Set by :meth:`reset`."""

    def set_value(self, value: Any) -> None:
        self.value = value
        self.save()


@runtime_checkable
class Stateful(Protocol):
    """What a checkpoint can be made of."""

    def state_dict(self) -> Any:
        """All that has to be kept."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Go back to it."""


class StateDictHandler(StateHandler):
    """For everything with ``state_dict()`` and ``load_state_dict()``.

    Attributes:
        saved: the last copy; the next but one overwrites it, unless it is :attr:`lent`.
        lent: somebody reads the last copy for a while.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._spare: Kept | None = None
        self._kept = Kept(self.value.state_dict(), None)
        self.lent = False

    @property
    def saved(self) -> Any:
        return self._kept.value

    @saved.setter
    def saved(self, value: Any) -> None:
        self._kept = Kept(value, None)
        self.lent = False

    def save(self) -> None:
        self.take(self.copied())

    def copied(self) -> Kept:
        """A copy of the state, in the memory of the last copy but one; that of a sharded optimizer needs all ranks."""
        return Kept(self.value.state_dict(), self._spare)

    def take(self, kept: Kept) -> None:
        """From now on this is the last copy."""
        self._spare = None if self.lent else self._kept
        self._kept = kept
        self.lent = False

    def restore(self) -> None:
        """Load a copy: an optimizer goes on working in the very tensors that it is given."""
        state = copy.deepcopy(self.saved)
        self.shard(state)
        self.value.load_state_dict(state)

    def shard(self, state: Any) -> None:
        """Let tensors of a copy be this rank's parts, where the value has parts."""

    def sync(self) -> None:
        """Broadcast the state as one object."""
        self.value.load_state_dict(broadcast_state(copy.deepcopy(self.value.state_dict()), self.root_rank))


class ModelStateHandler(StateDictHandler):
    """Parameters, buffers and extra state of a module."""

    def restore(self) -> None:
        """Also forget the gradients of the step that failed, or the next ones would be added to them."""
        settle(self.value.parameters())
        super().restore()
        self.value.zero_grad(set_to_none=True)

    def shard(self, state: Any) -> None:
        for name, mine in self.value.state_dict().items():
            if is_sharded(mine):
                state[name] = _part(state[name], mine)

    def sync(self) -> None:
        """Broadcast tensors into their place, and what is no tensor as one object."""
        state = self.value.state_dict()
        extra = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
        broadcast_parameters({name: value for name, value in state.items() if name not in extra}, self.root_rank)
        if extra:
            self.value.load_state_dict(broadcast_state(extra, self.root_rank), strict=False)


class OptimizerStateHandler(StateDictHandler):
    """Any torch optimizer, within a DistributedOptimizer or not."""

    def __init__(self, value: Any) -> None:
        if isinstance(value, ShardedOptimizer):
            raise ValueError(
                "hvd.elastic: no other rank has a lost rank's part of gradients and parameters, so sharded='gradients' "
                "and 'parameters' do not work with it. Use sharded='optimizer', or write checkpoints: "
                "hvd.full_state_dict(model) and optimizer.state_dict()."
            )
        super().__init__(value)

    def restore(self) -> None:
        """Also end the step that failed, or that has some of its passes, and forget its gradients."""
        settle(param for group in self.value.param_groups for param in group["params"])
        self._abandon_step()
        super().restore()
        self.value.zero_grad(set_to_none=True)

    def shard(self, state: Any) -> None:
        mine = [param for group in self.value.param_groups for param in group["params"]]
        if not any(map(is_sharded, mine)):  # a DistributedOptimizer may have other ones, and cuts them itself
            return
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        for param, number in zip(mine, numbers, strict=True):
            if is_sharded(param) and number in state["state"]:
                found = state["state"][number].items()
                state["state"][number] = {
                    name: _part(each, param) if getattr(each, "shape", None) == param.shape else each
                    for name, each in found
                }

    def sync(self) -> None:
        """Broadcast hyperparameters, counters and tensors."""
        self.reset()
        broadcast_optimizer_state(self.value, self.root_rank)

    def reset(self) -> None:
        """End a step that was broken off: gradients that were in flight will not be waited for any more."""
        if self._abandon_step():
            self.lost = self.value.leave_lost_shards()

    def _abandon_step(self) -> bool:
        distributed = isinstance(self.value, DistributedOptimizer)
        if distributed:
            self.value.abandon_step()
        return distributed


def _part(whole: torch.Tensor, like: Any) -> torch.Tensor:
    """This rank's part of a tensor; nothing is sent."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


class SamplerStateHandler(StateDictHandler):
    """An ElasticSampler: how far the epoch has come, and this rank's part of the rest."""

    def reset(self) -> None:
        """Share the rest out among the ranks that there are now."""
        self.value.reset()


Registry = Sequence[tuple[type, type[StateHandler]]]

_REGISTRY: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (Stateful, StateDictHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Pairs of a type and its handler; the first that fits is taken. It may be changed in place.

    Example:
        >>> class Counter:
        ...     n = 0
        >>> class CounterHandler(StateHandler):
        ...     def save(self): self.saved = self.value.n
        ...     def restore(self): self.value.n = self.saved
        ...     def sync(self): self.save()
        >>> registry = get_handler_registry()
        >>> registry.insert(0, (Counter, CounterHandler))
        >>> set_handler_registry(registry[1:])
    """
    return _REGISTRY


def set_handler_registry(registry: Registry) -> None:
    """Replace all pairs, for states that are made from now on."""
    _REGISTRY[:] = list(registry)


def handler_of(value: Any) -> StateHandler | None:
    """A handler for a value; None where there is none for its type."""
    return next((handler(value) for kind, handler in _REGISTRY if isinstance(value, kind)), None)


def save_together(handlers: Sequence[StateHandler]) -> None:
    """Save all, or none where a rank is lost meanwhile: model and optimizer must be of one step."""
    own = StateDictHandler
    together = [each for each in handlers if isinstance(each, own) and type(each).save is own.save]
    copies = [each.copied() for each in together]
    for each, copy_of_it in zip(together, copies, strict=True):
        each.take(copy_of_it)
    for handler in handlers:
        if handler not in together:
            handler.save()
