"""ZeRO, stage 1: each rank updates its part of the parameters, and keeps the optimizer's state for that part only.

Rajbhandari et al. 2020, arXiv:1910.02054. A step with n ranks:

1. The buckets of gradients are reduce-scattered: rank r ends with chunk r of each, reduced.
2. The wrapped optimizer steps on *shards*: those parts of the parameters whose gradients are in chunk r. To it they are
   parameters like others, so it makes state for them alone, 1/n of the whole.
3. Every rank gets all shards. On one machine there is nothing to do: the parameters of all its ranks are one memory, in
   which each has updated its part, and they only wait for each other. Otherwise the shards are gathered.

That is right for optimizers that treat each element by itself, and for no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import unwrap
from typing import Any

import numpy as np
import torch

from workbench.collectives.ring import chunk_lengths
from workbench.core.messages import Kind
from workbench.core.pending import Entry
from workbench.job import api
from workbench.job.process_sets import ProcessSet
from workbench.torch.compiled import not_traced
from workbench.torch.gradients.bucket import GradBucket
from workbench.torch.gradients.dense import DenseGradients, Submit
from workbench.torch.gradients.grads import Grads
from workbench.torch.hooks import Hook
from workbench.torch.sharded.shards import Shard, ShardedState
from workbench.torch.tensors import tensor_of
from workbench.training import memory

ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in ["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"]
)

_MOVED = (
    "The memory of parameter {!r} has been replaced (by model.to(), say) since this DistributedOptimizer(sharded=True) "
    "was made, and what it updates is no longer the model's. Make a new one."
)
_LOST = (
    "This DistributedOptimizer(sharded=True) belongs to a job that has ended, and the other ranks' parts of its state "
    "with it. Make a new one, and load a state_dict() that was taken before."
)


class Stage1Gradients(DenseGradients):
    """A :class:`~workbench.torch.gradients.source.GradientSource` for ``sharded="optimizer"``.

    The first step is an ordinary one. When it has shown which gradients there are, its buckets are sharded.

    Args:
        grads: of the optimizer's parameters.
        submit: hands entries to the engine.
        optimizer: the wrapped one.
        hooks: of the parameters, by name.
        names: of parameters; those of shards are added.

    Attributes:
        shards: the parts, from the first step on.
    """

    def __init__(
        self,
        grads: Grads,
        submit: Submit,
        optimizer: torch.optim.Optimizer,
        hooks: Mapping[str, Hook],
        names: dict[torch.nn.Parameter, str],
    ) -> None:
        super().__init__(grads, submit)
        self._optimizer = optimizer
        self._hooks = hooks
        self._names = names
        self.shards: ShardedBuckets | None = None

    @not_traced
    def reduce(self, names: Sequence[str], unsharded: bool = False) -> None:
        super().reduce(names)
        self._choose()
        if unsharded and self.shards:
            self.shards.complete()

    def step(self, update: Callable[[], Any], names: Sequence[str] | None) -> Any:
        if names is None:
            self._choose()
        else:
            self.reduce(names)
        with self.grads.steps.step(self.grads.order):
            result = update()
            self._publish()
        return result

    @not_traced
    def _choose(self) -> None:
        """Give the wrapped optimizer the gradients of its shards."""
        if not self.shards:
            self._shard()
        if self.shards:
            self.shards.check()
            self.shards.choose()

    def _shard(self) -> None:
        buckets = list(dict.fromkeys(self.grads.buckets.values()))
        if not buckets:
            return
        self.shards = ShardedBuckets(self._optimizer, self.grads, buckets)
        self.grads.reduction = self.shards
        self._names |= {part.param: name for name, part in self.shards.state.shards.items()}
        for name in self.shards.names:
            self._hooks[name].in_common = True

    @not_traced
    def _publish(self) -> None:
        if self.shards:
            self.shards.publish()

    def leave_lost(self) -> bool:
        """In another job than that of the shards: whole parameters again, without state. False if there are none."""
        if self.shards is None or not self.shards.lost:
            return False
        for name in self.shards.names:
            self._hooks[name].in_common = False
        for part in self.shards.state.shards.values():
            del self._names[part.param]
        self.shards.dissolve()
        self.shards = None
        self.grads.leave_sharding()
        return True


class ShardedBuckets:
    """The parts of all parameters that live in buckets; a :class:`~workbench.torch.gradients.grads.BucketReduction`.

    Args:
        optimizer: the wrapped one; its parameters are replaced by shards.
        grads: of all parameters.
        buckets: of gradients, which hold the first step's, reduced.

    Attributes:
        names: of the parameters that are updated in parts.
        state: what the wrapped optimizer updates.
    """

    fixed = True

    def __init__(self, optimizer: torch.optim.Optimizer, grads: Grads, buckets: Sequence[GradBucket]) -> None:
        params, process_set = grads.params, grads.process_set
        self._set = process_set
        self._order = grads.order
        self._job = api.world()
        self.names = [name for name in params if any(name in bucket.views for bucket in buckets)]
        self._params = {name: params[name] for name in self.names}
        self._memory = [_Memory(bucket, params, process_set) for bucket in buckets]
        self._grads = {name: grad for each in self._memory for name, grad in each.grads.items()}
        self._name = buckets[0].layout.name  # of this optimizer's parameters alone, as all names are
        self.state = ShardedState(optimizer, process_set, self._name)
        self.state.cut(self._params, {name: shard for each in self._memory for name, shard in each.shards.items()})

    def entry(self, bucket: GradBucket) -> Entry:
        """Reduces a bucket so that each rank has its chunk."""
        array = bucket.array[: bucket.layout.flags]
        about: dict[str, Any] = {"dtype": bucket.layout.dtype, "target": array, "process_set": self._set}
        about |= self._order.fields(bucket.layout.name, self._set)
        return api.entry(Kind.REDUCESCATTER, array, bucket.layout.name, op=api.Average, **about)

    def give(self, bucket: GradBucket) -> None:
        """Nothing: :meth:`choose` shows this rank's chunk to the shards, and no other is here."""

    def choose(self) -> None:
        """Give the shards their gradients, but for parameters of which no rank has one: as in a serial run."""
        there = self._with_gradient()
        for name, part in self.state.shards.items():
            part.param.grad = self._grads[name] if name in there else None

    def complete(self) -> None:
        """Bring every rank's part of the gradients to all, for who wants to look at them or clip them."""
        there = self._with_gradient()
        for each in self._memory:
            each.complete(there)

    def _with_gradient(self) -> set[str]:
        """Names of parameters of which some rank has a gradient."""
        present = np.array([self._params[name].grad is not None for name in self.names], np.uint8)
        about: dict[str, Any] = {"op": api.Max, "target": present, "process_set": self._set}
        name = f"which gradients there are of {self._name}"
        api.submit([api.entry(Kind.ALLREDUCE, present, name, **about)])[0].wait()
        return {name for name, found in zip(self.names, present.tolist(), strict=True) if found}

    def publish(self) -> None:
        """After the update: every rank has all parameters when this returns."""
        if all(each.shared for each in self._memory):
            api.submit([api.entry(Kind.BARRIER, None, f"updated {self._name}", process_set=self._set)])[0].wait()
        else:
            for each in self._memory:
                each.publish()

    @property
    def lost(self) -> bool:
        """Have they been made for a job that has ended?"""
        return self._job is not api.world()

    def dissolve(self) -> None:
        """Give the optimizer whole parameters again, in memory of this rank alone; the state of shards is gone."""
        self.state.dissolve()
        for param in self._params.values():
            param.data, param.grad = param.data.clone(), None

    def check(self) -> None:
        """Raise a RuntimeError if the shards are no longer what the model trains with."""
        if self.lost:
            raise RuntimeError(_LOST)
        for each in self._memory:
            for name, view in each.views.items():
                if self._params[name].data_ptr() != view.data_ptr():
                    raise RuntimeError(_MOVED.format(name))

    def zero_grad(self, set_to_none: bool) -> None:
        """As an optimizer's, for the parameters as the model knows them."""
        for param in self._params.values():
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.zero_()


class _Memory:
    """The parameters of one bucket, one behind the other as their gradients are.

    Attributes:
        shared: is it the memory of all ranks?
        views: of all its parameters, by name.
        shards: this rank's parts of them, by name.
        grads: of their gradients in the bucket, by name.
    """

    def __init__(self, bucket: GradBucket, params: Mapping[str, torch.nn.Parameter], process_set: ProcessSet) -> None:
        self._bucket = bucket
        self._set = process_set
        plan, like = bucket.layout, params[bucket.layout.names[0]]
        lengths = chunk_lengths(plan.flags, int(process_set.size() or 1))
        rank = int(process_set.rank() or 0)
        self._start = sum(lengths[:rank])
        self._stop = sum(lengths[: rank + 1])
        # It may outlive the job: parameters are views of it until dissolve(), or a newer optimizer's hook, copies them.
        together = memory.shared(plan.flags, bucket.array.dtype.name, process_set)
        self.shared = together is not None
        self._array = memory.empty(plan.flags, bucket.array.dtype.name) if together is None else together
        self._flat = tensor_of(self._array, like)
        self.shards: dict[str, Shard] = {}
        self.grads: dict[str, torch.Tensor] = {}
        self.views = bucket.shaped(self._array)
        for piece, start in zip(plan.pieces, plan.starts, strict=True):
            param, name = params[piece.name], piece.name
            bucket.take(name)
            if not self.shared or rank == 0:
                self.views[name].copy_(param.detach())
            low, high = max(start, self._start), min(start + piece.length, self._stop)
            if low < high:
                part = torch.nn.Parameter(self._flat[low:high])
                self.shards[name] = Shard(low - start, high - start, part)
                self.grads[name] = bucket.flat[low:high]
        api.barrier(process_set)  # nobody lets go of its own before all is copied
        for name, view in self.views.items():
            params[name].data = view.data

    def complete(self, there: set[str]) -> None:
        """Gather the gradients, and show those of other ranks where this one has none."""
        self._gather(self._bucket.array[: self._bucket.layout.flags], "gradients")
        for name in there.intersection(self.views):
            self._bucket.show(name)

    def publish(self) -> None:
        self._gather(self._array, "parameters")

    def _gather(self, array: api.Array, what: str) -> None:
        name, dtype = f"{what} of {self._bucket.layout.name}", self._bucket.layout.dtype
        mine = array[self._start : self._stop]
        entry = api.entry(Kind.ALLGATHER, mine, name, dtype=dtype, process_set=self._set)
        array[...] = api.submit([entry])[0].wait()


def check_shardable(optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor]) -> None:
    """Raise a ValueError if the optimizer looks at more than one element at a time, or parameters are on a GPU."""
    if any(param.device.type != "cpu" for param in params):
        raise ValueError(
            "sharded=True is for parameters in the CPU's memory, which the ranks of a machine can share; on a GPU "
            "leave it out, or shard with torch's own fully_shard()."
        )
    check_elementwise(optimizer, "sharded=True", "updates slices of parameters, and {} may need whole ones")


def check_elementwise(optimizer: torch.optim.Optimizer, option: str, why: str) -> None:
    """Raise a ValueError if the optimizer looks at more than one element at a time.

    Args:
        optimizer: a torch optimizer.
        option: of DistributedOptimizer with its value, which goes with others only.
        why: what that does, and what the optimizer, {}, may need.
    """
    known = next((kind for kind in ELEMENTWISE if isinstance(optimizer, kind)), None)
    # torch wraps step() of the class of every optimizer that is made, also where the class has it from another one.
    if known is None or unwrap(type(optimizer).step) is not unwrap(known.step):
        # Adagrad makes its state at once, of parameters that are sharded by then.
        fitting = (kind for kind in ELEMENTWISE if kind is not torch.optim.Adagrad or "parameters" not in option)
        names = ", ".join(kind.__name__ for kind in fitting)
        what = why.format(type(optimizer).__name__)
        raise ValueError(f"{option} {what}. Use one of {names}, or leave {option.partition('=')[0]} out.")
