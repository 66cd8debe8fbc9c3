"""The gradients of an optimizer in exact mode: kept apart by logical shard, and reduced in the order of the shards.

Where each rank owns one shard and all share their memory, the ordinary way adds in the order of the ranks, element by
element, as in :mod:`workbench.collectives.shared_memory`. That is the order of the shards, so it is taken as it is,
with its overlap. Gradients of 16 bits are an exception: the ordinary way rounds after each addition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from workbench.elastic.exact import reduce_shards
from workbench.job import api
from workbench.job.api import Average, Sum
from workbench.job.context import HOLDER
from workbench.job.process_sets import global_process_set
from workbench.torch.compression import Compression
from workbench.torch.gradients.dense import TOO_MANY_PASSES
from workbench.torch.gradients.source import GradientSource
from workbench.torch.optimizer import DistributedOptimizer
from workbench.torch.tensors import dtype_name, tensor_of, view

_BEFORE_STEP = (
    "optimizer.step() came before the last of this rank's shards was done. In exact mode a step is: "
    "`for shard in state.shards(): loss_of(shard).backward()`, then optimizer.step() once, after the loop."
)
_OUTSIDE = (
    "Exact mode: backward() was called outside of `for shard in state.shards():`. To train without it, make a new "
    "DistributedOptimizer."
)
_SPARSE = (
    "Exact mode: the gradient of {!r} is sparse. Give DistributedOptimizer sparse_as_dense=True, or leave "
    "exact=True out of hvd.elastic.run."
)


class ShardGradients:
    """A :class:`~workbench.torch.gradients.source.GradientSource`; see the module.

    Args:
        optimizer: whose gradients.
        shards: of all ranks.
        name: the same on every rank, another for each optimizer.

    Attributes:
        ordinary_way: the source that the optimizer has without exact mode.
        ordinary: in this step it reduces the gradients.

    Raises:
        ValueError: the optimizer does what has no fixed order.
    """

    def __init__(self, optimizer: DistributedOptimizer, shards: int, name: str) -> None:
        self._hooks = optimizer._distributed
        self._shards = shards
        self._name = name
        self.ordinary_way: GradientSource = self._hooks.source
        check(optimizer)
        self._groups: list[_Group] = []
        self._layout: Any = None
        self._row = -1
        self._taken = set[str]()
        self._done = False
        self._present: list[set[str]] = []
        self.ordinary = False

    def begin(self, own: int) -> None:
        """A step begins, of which this rank does so many shards."""
        hooks, context = self._hooks, HOLDER.get()
        trained = hooks.trained()
        params = [hooks.grads.params[name] for name in trained]
        in_order = context.world.size == 1 or context.sets.everybody.name == "SHM"
        self.ordinary = (
            self._shards == context.world.size and in_order and all(param.element_size() >= 4 for param in params)
        )
        self._row = -1
        self._taken = set()
        self._done = False
        self._present = []
        for param in params:
            param.grad = None
        if self.ordinary:
            self._groups = []
            return
        layout = (context.world, own, [(name, p.dtype, p.shape) for name, p in zip(trained, params, strict=True)])
        if not self._groups or self._layout != layout:
            self._layout = layout
            kinds = dict.fromkeys(param.dtype for param in params)
            self._groups = [
                _Group({name: p for name, p in zip(trained, params, strict=True) if p.dtype is kind}, own)
                for kind in kinds
            ]

    def enter(self) -> None:
        self._row += 1
        self._taken = set()

    @property
    def in_flight(self) -> bool:
        return self.ordinary_way.in_flight

    def ready(self, name: str, keep: bool) -> None:
        if not keep:
            self._take(name)
        if self.ordinary:
            self.ordinary_way.ready(name, keep)

    def _take(self, name: str) -> None:
        """Backward has finished a gradient of this shard."""
        if self._row < 0 or self._done:
            raise RuntimeError(_OUTSIDE)
        grad = self._hooks.grads.params[name].grad
        if grad is not None and grad.layout is not torch.strided:
            if not self._hooks.grads.sparse.as_dense:
                raise ValueError(_SPARSE.format(name))
            grad = grad.to_dense()
        if grad is None or self.ordinary:
            return
        if name in self._taken:
            raise AssertionError(TOO_MANY_PASSES)
        self._taken.add(name)
        for group in self._groups:
            if name in group.places:
                with torch.no_grad():
                    group.views[self._row][name].copy_(grad)

    def leave(self) -> None:
        """The shard is done: take what ``no_sync()`` has left, and clear for the next."""
        if self.ordinary:
            return
        for group in self._groups:
            for name, place in group.places.items():
                if name not in self._taken:
                    self._take(name)
                if name not in self._taken:
                    group.views[self._row][name].zero_()
                group.flags[self._row, place] = name in self._taken
        for name in self._taken:
            self._hooks.grads.params[name].grad = None

    def end(self) -> None:
        self._done = True

    def reduce(self, names: Sequence[str], unsharded: bool = False) -> None:
        if not self._done:
            raise RuntimeError(_BEFORE_STEP)
        if self.ordinary:
            self.ordinary_way.reduce(names)
            return
        op = self._hooks.grads.op.value
        for number, group in enumerate(self._groups):
            group.reduce(self._shards, op, f"exact.{self._name}.{number}", self._hooks.grads.params)

    def step(self, update: Callable[[], Any], names: Sequence[str] | None) -> Any:
        if names is not None:
            self.reduce(names)
        with self._hooks.steps.step(self._hooks.grads.order):
            return update()

    def abandon(self) -> None:
        self.ordinary_way.abandon()

    def restart(self) -> bool:
        return self.ordinary_way.restart()


class _Group:
    """The trained parameters of one dtype.

    Attributes:
        places: of each name its place among the flags.
        views: by row, of each name its part.
        flags: by row and place: has this shard a gradient?
    """

    def __init__(self, params: dict[str, torch.nn.Parameter], own: int) -> None:
        self.places = {name: i for i, name in enumerate(params)}
        like = next(iter(params.values()))
        self._kind = dtype_name(like)
        self._dtype = like.dtype
        lengths = [param.numel() for param in params.values()]
        self._starts = np.cumsum([0, *lengths]).tolist()
        length = self._starts[-1] + len(params)
        self._rows = torch.zeros(own, -(-length // api.size()) * api.size(), dtype=like.dtype)
        self._shapes = {name: (param.shape, torch.empty_like(param).stride()) for name, param in params.items()}
        self.views = [self._shaped(row) for row in self._rows]
        self.flags = self._rows[:, self._starts[-1] : length]

    def reduce(self, shards: int, op: str, name: str, params: dict[str, torch.nn.Parameter]) -> None:
        """Of all shards; a parameter that no shard has used gets no gradient."""
        like = torch.empty(0, dtype=self._dtype)
        flat = tensor_of(reduce_shards(view(self._rows), shards, op, self._kind, name), like)
        used = (flat[self._starts[-1] :] != 0).tolist()
        for place, (each, part) in enumerate(self._shaped(flat).items()):
            params[each].grad = part.to(params[each].device) if used[place] else None

    def _shaped(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        start = flat.storage_offset()
        return {
            name: flat.as_strided(shape, stride, start + self._starts[place])
            for (name, (shape, stride)), place in zip(self._shapes.items(), self.places.values(), strict=True)
        }


def check(optimizer: DistributedOptimizer) -> None:
    """Raise a ValueError that names everything of an optimizer that has no fixed order over shards."""
    hooks = optimizer._distributed
    grads = hooks.grads
    wrong = [
        text
        for text, is_wrong in {
            "sharded=True": hooks.sharded,
            f"op={grads.op.value}": grads.op not in (Average, Sum),
            "compression": grads.compression is not Compression.none,
            "backward_passes_per_step > 1": grads.passes > 1,
            "gradient_predivide_factor": grads.predivided,
            "groups": bool(grads.groups),
            "a process set": grads.process_set is not global_process_set,
        }.items()
        if is_wrong
    ]
    if wrong:
        raise ValueError(
            f"Exact mode does not work with {', '.join(wrong)}: a gradient would depend on the number of ranks. Make "
            "the DistributedOptimizer without it, or leave exact=True out of hvd.elastic.run. Several "
            "backward passes in a shard: all but the last within optimizer.no_sync()."
        )


def distributed(values: Sequence[object]) -> list[DistributedOptimizer]:
    """The DistributedOptimizers among the values of a state."""
    return [value for value in values if type(value) is DistributedOptimizer]
