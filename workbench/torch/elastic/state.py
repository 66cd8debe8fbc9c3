"""TorchState: models, optimizers, samplers and plain objects, committed and restored together.

What has a handler is saved, restored and synced by it, see :mod:`workbench.torch.elastic.handlers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from workbench.elastic.checkpoint import Notice
from workbench.elastic.checkpoint_values import NUMPY, ArrayKind
from workbench.elastic.state import ObjectState
from workbench.errors import CheckpointError
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.job.objects import broadcast_state
from workbench.torch.elastic.exact import Exact
from workbench.torch.elastic.handlers import (
    ModelStateHandler,
    StateDictHandler,
    StateHandler,
    handler_of,
    save_together,
)
from workbench.torch.elastic.stored import TENSORS
from workbench.training.graph_calls import GraphCalls


class _HiddenByAttribute:
    """A read-only property that gives way to an attribute of the same name."""

    def __init__(self, get: Callable[[Any], Exact]) -> None:
        self._get = get
        self.__doc__ = get.__doc__

    def __get__(self, state: Any, owner: type | None = None) -> Any:
        return self if state is None else self._get(state)


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
    _may_be_hidden: Sequence[str] = ("checkpoint", "finish", "begin_exact", "exact", "shards")
    _exact: Exact | None = None

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        self._handlers: dict[str, StateHandler] = {}
        self._loaded: set[str] = set()
        self._waiting: dict[str, Any] = {}  # of those, the last commit, until they are made anew
        values = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: handler for name, value in values.items() if (handler := handler_of(value)) is not None}
        plain = {name: value for name, value in values.items() if name not in handlers}
        super().__init__(broadcast_state, api.rank, **plain)
        self._add({name: handler.value for name, handler in handlers.items()})
        self._handlers = handlers

    def load_into(self, **values: Any) -> None:
        """Load the last commit into other objects, and keep those from now on. All ranks call it.

        For what is sharded over a process group, which ends with the job: a model after ``fully_shard``, and its
        optimizer. The training function makes them at its beginning, with each reset anew. A commit gathers them, so
        every rank has them whole and any rank may die; each takes its new part from there.

        Args:
            values: by attribute of this state, in the order in which they were made.

        Raises:
            ValueError: the state has no such model, optimizer or object with a ``state_dict()``, or is exact.

        Example:
            >>> import workbench.torch as hvd
            >>> hvd.init()
            >>> model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
            >>> state = TorchState(model)
            >>> state.load_into(model=other)
            >>> torch.equal(other.weight, model.weight), state.model is other
            (True, True)
            >>> hvd.shutdown()
        """
        if self._exact:
            raise ValueError("load_into(): exact mode has no sharded models. Train with DDP, or without exact=True.")
        committed = self._committed()
        for name, value in values.items():
            handler = handler_of(value)
            if name not in committed or not isinstance(handler, StateDictHandler):
                raise ValueError(
                    f"load_into({name}=…): the state has no such model, optimizer or object with a state_dict(). "
                    f"Give TorchState({name}=…) a whole one before."
                )
            handler.saved = committed[name]
            handler.restore()
            self._waiting.pop(name, None)
            self._handlers[name] = handler
            self._loaded.add(name)
            super().__setattr__(name, value)

    def save(self) -> None:
        """Copy everything; in exact mode, all ranks call it.

        Raises:
            RuntimeError: what was sharded was not made anew after a reset.
        """
        if self._waiting:
            raise RuntimeError(
                f"state.commit() on rank {api.rank()}: the job has begun anew, and {', '.join(self._waiting)} not. "
                "Call state.load_into() for it at the beginning of the training function."
            )
        if self._exact:
            self._exact.exchange()
        self._save_here()
        if self._exact:
            self._exact.version += 1

    def _save_here(self) -> None:
        """Copy everything as it is on this rank."""
        save_together(list(self._handlers.values()))
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
        self._resume()
        if self._exact:
            self._exact.sync()
            return
        self._broadcast_from(0)
        self._save_here()

    def _broadcast_from(self, root_rank: int) -> None:
        """Give every rank what this one has now. All ranks call it."""
        values, self._waiting = broadcast_state((self._values(), self._waiting), root_rank)
        self._set(values)
        for name in self._waiting:  # a newcomer has them whole
            self._handlers.pop(name, None)
        for handler in self._handlers.values():
            handler.root_rank = root_rank
            handler.sync()

    # --- exact mode -----------------------------------------------------------------------------------

    def begin_exact(self, shards: int | None = None, seed: int = 0) -> None:
        """What ``run(exact=True, shards=, seed=)`` does first. By hand: to load a checkpoint before it."""
        self._begin_exact(shards, seed)

    def _begin_exact(self, shards: int | None, seed: int) -> None:
        if hidden := {"exact", "shards"} & {*self._names, *self._handlers}:
            raise ValueError(f"Exact mode needs state.{min(hidden)}: give the attribute of this name another one.")
        if self._exact is None or (shards or self._exact.shards, seed) != (self._exact.shards, self._exact.seed):
            self._exact = Exact(self, shards, seed)

    @_HiddenByAttribute
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
        return self.exact.each()  # type: ignore[no-any-return]

    def _settle(self) -> None:
        """In exact mode: the modules' buffers of shard 0 on every rank, for an evaluation. All ranks call it."""
        if self._exact:
            self._exact.settle()

    def _own_errors(self) -> AbstractContextManager[None]:
        """DDP's backward raises a RuntimeError with the text of ours."""
        return HOLDER.get().part(GraphCalls).own_errors(RuntimeError)

    def _handled(self) -> list[Any]:
        return [handler.value for handler in self._handlers.values()]

    def reset(self) -> None:
        """Fit samplers and optimizers to the new job; what was sharded waits for :meth:`load_into`."""
        committed = self._committed()
        for name in self._loaded & {*self._handlers}:
            self._waiting[name] = committed[name]
            del self._handlers[name]
            super().__setattr__(name, None)
        for handler in self._handlers.values():
            handler.reset()
        if any(handler.lost for handler in self._handlers.values()):
            self.restore()  # a sharded optimizer's state; all goes back to its commit, or weights would be newer

    def _committed(self) -> dict[str, Any]:
        """State dicts by attribute."""
        handlers = {name: each for name, each in self._handlers.items() if isinstance(each, StateDictHandler)}
        return {name: each.saved for name, each in handlers.items()} | self._waiting

    def _copies(self) -> dict[str, Any]:
        copies = super()._copies()
        for name, handler in self._handlers.items():
            if not isinstance(handler, StateDictHandler):
                raise CheckpointError(
                    f"{name!r} has a {type(handler).__name__}: a checkpoint needs one that is a StateDictHandler."
                )
        copies = {**copies, **self._committed()}
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
