"""TorchState: models, optimizers, samplers and plain objects, committed and restored together.

A *handler* knows how to save, restore and sync one kind of value; the registry says which kind has which. Anything
with ``state_dict()`` and ``load_state_dict()`` has one (schedulers, gradient scalers), and the rest are plain objects.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from workbench import api
from workbench.elastic.checkpoint import Notice
from workbench.elastic.checkpoint_values import NUMPY, ArrayKind
from workbench.elastic.state import ObjectState
from workbench.errors import CheckpointError
from workbench.torch.elastic.exact import Exact
from workbench.torch.elastic.kept import Kept
from workbench.torch.elastic.sampler import ElasticSampler
from workbench.torch.elastic.stored import TENSORS
from workbench.torch.functions import broadcast_optimizer_state, broadcast_parameters
from workbench.torch.optimizer import DistributedOptimizer
from workbench.training.objects import broadcast_state


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
        """Fit what depends on rank and size to the new job."""

    lost = False
    """Has the value lost with other ranks what only the last commit has? Set by :meth:`reset`."""

    def set_value(self, value: Any) -> None:
        """Another value takes its place."""
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
        self._kept, self.lent = Kept(self.value.state_dict(), None), False

    @property
    def saved(self) -> Any:
        """See the class."""
        return self._kept.value

    @saved.setter
    def saved(self, value: Any) -> None:
        self._kept, self.lent = Kept(value, None), False

    def save(self) -> None:
        """Copy the state, into the memory of the last copy but one: the last stays whole until this one is."""
        kept = Kept(self.value.state_dict(), self._spare)
        self._spare = None if self.lent else self._kept
        self._kept, self.lent = kept, False

    def restore(self) -> None:
        """Load a copy: an optimizer goes on working in the very tensors that it is given."""
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self) -> None:
        """Broadcast the state as one object."""
        self.value.load_state_dict(broadcast_state(copy.deepcopy(self.value.state_dict()), self.root_rank))


class ModelStateHandler(StateDictHandler):
    """Parameters, buffers and extra state of a module."""

    def restore(self) -> None:
        """Also forget the gradients of the step that failed, or the next ones would be added to them."""
        super().restore()
        self.value.zero_grad(set_to_none=True)

    def sync(self) -> None:
        """Broadcast tensors into their place, and what is no tensor as one object."""
        state = self.value.state_dict()
        extra = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
        broadcast_parameters({name: value for name, value in state.items() if name not in extra}, self.root_rank)
        if extra:
            self.value.load_state_dict(broadcast_state(extra, self.root_rank), strict=False)


class OptimizerStateHandler(StateDictHandler):
    """Any torch optimizer, within a DistributedOptimizer or not."""

    def restore(self) -> None:
        """Also forget the gradients of the step that failed."""
        super().restore()
        for group in self.value.param_groups:
            for param in group["params"]:
                param.grad = None

    def sync(self) -> None:
        """Broadcast hyperparameters, counters and tensors."""
        self.reset()
        broadcast_optimizer_state(self.value, self.root_rank)

    def reset(self) -> None:
        """End a step that was broken off: gradients that were in flight will not be waited for any more."""
        if isinstance(self.value, DistributedOptimizer):
            self.value.abandon_step()
            self.lost = self.value.leave_lost_shards()


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


def _handler(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _REGISTRY if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """What a training is: model, optimizer, and whatever else is given by keyword, each an attribute.

    Values of one rank alone do not belong in it: the sync overwrites them with rank 0's. Gradients are not kept,
    so commit between steps.

    Args:
        model: a module, or None.
        optimizer: any torch optimizer, or None.
        kwargs: further modules, optimizers, schedulers, samplers and plain objects.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(1, 1)
        >>> state = TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), epoch=0)
        >>> state.sync()
        >>> state.epoch, before = 1, model.weight.item()
        >>> with torch.no_grad(): _ = model.weight.add_(1.0)
        >>> state.restore()
        >>> state.epoch, model.weight.item() == before
        (0, True)
        >>> hvd.shutdown()
    """

    _array_kinds: Sequence[ArrayKind] = (NUMPY, TENSORS)
    _exact: Exact | None = None

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        self._handlers: dict[str, StateHandler] = {}
        values = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: handler for name, value in values.items() if (handler := _handler(value)) is not None}
        plain = {name: value for name, value in values.items() if name not in handlers}
        super().__init__(broadcast_state, api.rank, **plain)
        self._add({name: handler.value for name, handler in handlers.items()})
        self._handlers = handlers

    def save(self) -> None:
        """Copy everything; in exact mode, all ranks call it."""
        if self._exact:
            self._exact.exchange()
        self.save_here()
        if self._exact:
            self._exact.version += 1

    def save_here(self) -> None:
        """Copy everything as it is on this rank."""
        for handler in self._handlers.values():
            handler.save()
        super().save()
        if self._exact:
            self._exact.keep()

    def restore(self) -> None:
        """Put everything back as it was at the last commit; modules and optimizers in place."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()
        if self._exact:
            self._exact.restore()

    def sync(self) -> None:
        """Rank 0's values as they are now, on every rank, and saved; in exact mode the newest commit of any rank."""
        self.resume()
        if self._exact:
            self._exact.sync()
            return
        self.broadcast_from(0)
        self.save_here()

    def broadcast_from(self, root_rank: int) -> None:
        """Give every rank what this one has now. All ranks call it."""
        for handler in self._handlers.values():
            handler.root_rank = root_rank
            handler.sync()
        if self._names:
            self._set(broadcast_state(self._values(), root_rank))

    # --- exact mode -----------------------------------------------------------------------------------

    def begin_exact(self, shards: int | None = None, seed: int = 0) -> None:
        """What ``run(exact=True, shards=, seed=)`` does first. By hand: to load a checkpoint before it."""
        if self._exact is None or (shards or self._exact.shards, seed) != (self._exact.shards, self._exact.seed):
            self._exact = Exact(self, shards, seed)

    @property
    def exact(self) -> Exact:
        """The logical shards.

        Raises:
            RuntimeError: this training is not exact.
        """
        if self._exact is None:
            raise RuntimeError("state.shards() and state.exact need @hvd.elastic.run(exact=True).")
        return self._exact

    def shards(self) -> Iterator[int]:
        """This rank's logical shards, for one step in exact mode.

        Within the loop each shard has its own random state and its own buffers, and its gradient is kept apart. All
        ranks go through the whole loop, then call ``optimizer.step()`` once.

        Raises:
            RuntimeError: this training is not exact.

        Example:
            >>> import workbench.torch as hvd
            >>> hvd.init()
            >>> model = torch.nn.Linear(1, 1)
            >>> inner = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> state = TorchState(model, hvd.DistributedOptimizer(inner, model.named_parameters()))
            >>> @hvd.elastic.run(exact=True, shards=2)
            ... def train(state):
            ...     while state.exact.step < 3:
            ...         for shard in state.shards():
            ...             state.model(torch.tensor([[shard + 1.0]])).sum().backward()
            ...         state.optimizer.step()
            ...         state.commit()
            >>> train(state)
            >>> state.exact.step, model.weight.grad.item()
            (3, 1.5)
            >>> hvd.shutdown()
        """
        return self.exact.each()

    def settle(self) -> None:
        """In exact mode: the modules' buffers of shard 0 on every rank, for an evaluation. All ranks call it."""
        if self._exact:
            self._exact.settle()

    def handled(self) -> list[Any]:
        """All that has a handler."""
        return [handler.value for handler in self._handlers.values()]

    def reset(self) -> None:
        """Fit samplers and optimizers to the new job."""
        for handler in self._handlers.values():
            handler.reset()
        if any(handler.lost for handler in self._handlers.values()):
            self.restore()  # a sharded optimizer's state; all goes back to its commit, or weights would be newer

    def _copies(self) -> dict[str, Any]:
        copies = super()._copies()
        for name, handler in self._handlers.items():
            if not isinstance(handler, StateDictHandler):
                raise CheckpointError(
                    f"{name!r} has a {type(handler).__name__}: a checkpoint needs one that is a StateDictHandler."
                )
            copies = {**copies, name: handler.saved}
        return {**copies, "exact": self._exact.state_dict()} if self._exact else copies

    def _lent(self) -> dict[str, Any]:
        for handler in self._handlers.values():
            if isinstance(handler, StateDictHandler):
                handler.lent = True
        return self._copies()

    def _take(self, values: dict[str, Any]) -> None:
        for name, handler in self._handlers.items():
            if isinstance(handler, StateDictHandler):
                handler.saved = values[name]
        super()._take(values)
        if self._exact:
            self._exact.load_state_dict(values["exact"])

    def _of_fixed_shape(self) -> Sequence[str]:
        return [name for name, handler in self._handlers.items() if isinstance(handler, ModelStateHandler)]

    def _as_rank_0_knows(
        self, before: float, latest: float, update: int, notice: Notice | None
    ) -> tuple[float, float, int, Notice | None]:
        if self._checkpoints is not None:
            return super()._as_rank_0_knows(before, latest, update, notice)
        # As three numbers: an object would be two broadcasts, in each commit.
        told = api.broadcast(np.array([before, latest, update], np.float64), 0, "elastic.hosts").tolist()
        return told[0], told[1], int(told[2]), None

    def __setattr__(self, name: str, value: Any) -> None:
        """Another model or optimizer in the place of one is saved from now on."""
        if name != "_handlers" and name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)


__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateDictHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]
