"""ZeRO, stage 1: each rank updates its part of the parameters, and keeps the optimizer's state for that part only.

Rajbhandari et al. 2020, arXiv:1910.02054. A step with n ranks:

1. The buckets of gradients are reduce-scattered: rank r ends with chunk r of each, reduced.
2. The wrapped optimizer steps on *shards*: those parts of the parameters whose gradients are in chunk r. To it they are
   parameters like others, so it makes state for them alone, 1/n of the whole.
3. The shards are gathered, so that every rank has all parameters. They are each rank's own: whatever a script does with
   a replicated model's (weights that are swapped for an evaluation, say) is right here, too.

That is right for optimizers that treat each element by itself, and for no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import unwrap
from typing import Any

import torch

from workbench.collectives.ring import chunk_lengths
from workbench.core.messages import Kind
from workbench.core.pending import Entry
from workbench.job import api
from workbench.job.process_sets import ProcessSet
from workbench.torch.compiled import not_traced
from workbench.torch.gradients.bucket import GradBucket
from workbench.torch.gradients.dense import DenseGradients, Submit, wait_for_all
from workbench.torch.gradients.grads import Grads
from workbench.torch.sharded.consistency import ConsistencyCheck, Progress, ReplicatedWeights
from workbench.torch.sharded.flat_parameter import MOVED, SKIPPED, Members, uneven
from workbench.torch.sharded.shards import Shard, ShardedState
from workbench.torch.tensors import tensor_of
from workbench.training import memory

ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in ["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"]
)

_EQUALLY = f"With sharded=True all ranks call optimizer.step() equally often. {SKIPPED}"
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
        names: of parameters; those of shards are added.

    Attributes:
        shards: the parts, from the first step on.
    """

    def __init__(
        self, grads: Grads, submit: Submit, optimizer: torch.optim.Optimizer, names: dict[torch.nn.Parameter, str]
    ) -> None:
        super().__init__(grads, submit)
        self._optimizer = optimizer
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
            if self.shards:
                self.shards.take()
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

    @not_traced
    def _publish(self) -> None:
        if self.shards:
            self.shards.publish()

    def leave_lost(self) -> bool:
        """In another job than that of the shards: whole parameters again, without state. False if there are none."""
        if self.shards is None or not self.shards.lost:
            return False
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
        self._there: set[str] = set()  # names of parameters of which some rank has a gradient in this step
        self._used: set[str] = set()  # names of gradients that the last step has used up
        self._name = buckets[0].layout.name  # of this optimizer's parameters alone, as all names are
        flats = [tensor_of(each.array, next(iter(self._params.values()))) for each in self._memory]
        weights = ReplicatedWeights(self._params.values(), flats)
        self._consistency = ConsistencyCheck(Members.of(process_set), self._name, weights)
        self._updates = 0
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

    def take(self) -> None:
        """After :meth:`complete`: bring gradients that the user has replaced into the buckets."""
        for each in self._memory:
            each.take()

    def choose(self) -> None:
        """Give the shards their gradients, but for parameters of which no rank has one: as in a serial run."""
        self._there = self._with_gradient()
        for name, part in self.state.shards.items():
            part.param.grad = self._grads[name] if name in self._there else None

    def complete(self) -> None:
        """Bring every rank's part of the gradients to all, for who wants to look at them or clip them."""
        self._gather([each.reduced for each in self._memory], "gradients")
        for each in self._memory:
            each.show(self._there)

    def _with_gradient(self) -> set[str]:
        """Names of parameters of which some rank has a gradient."""
        present = [self._params[name].grad is not None for name in self.names]
        progress = Progress(self._updates, touched=self._consistency.weights.touched())
        with uneven(_EQUALLY):
            found = self._consistency.any_of(present, progress)
        return {name for name, there in zip(self.names, found, strict=True) if there}

    def publish(self) -> None:
        """After the update: every rank has all parameters when this returns."""
        self._gather([each.array for each in self._memory], "parameters")
        self.zero_grad(set_to_none=True)
        self._used = self._there
        self._updates += 1
        self._consistency.weights.note()

    def _gather(self, arrays: Sequence[api.Array], what: str) -> None:
        entries = []
        for array, each in zip(arrays, self._memory, strict=True):
            about: dict[str, Any] = {"dtype": each.layout.dtype, "target": array, "process_set": self._set}
            name = f"{what} of {each.layout.name}"
            entries.append(api.entry(Kind.ALLGATHER, array[each.start : each.stop], name, **about))
        wait_for_all(api.submit(entries))

    @property
    def lost(self) -> bool:
        """Have they been made for a job that has ended?"""
        return self._job is not api.world()

    def dissolve(self) -> None:
        """Give the optimizer whole parameters again; the state of shards is gone."""
        self.state.dissolve()
        self.zero_grad(set_to_none=True)

    def check(self) -> None:
        """Raise a RuntimeError if the shards are no longer what the model trains with."""
        if self.lost:
            raise RuntimeError(_LOST)
        for each in self._memory:
            for name, view in each.views.items():
                if self._params[name].data_ptr() != view.data_ptr():
                    raise RuntimeError(MOVED.format(name, True))

    def zero_grad(self, set_to_none: bool) -> None:
        """As an optimizer's, for the parameters as the model knows them."""
        used, self._used = self._used, set()
        for each in self._memory if not set_to_none else ():
            each.show(used)
        for param in self._params.values():
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.zero_()


class _Memory:
    """The parameters of one bucket, one behind the other as their gradients are.

    Attributes:
        layout: the bucket's.
        array: the parameters.
        reduced: the bucket's array without what is not a gradient.
        start, stop: this rank's part of both.
        views: of all its parameters, by name.
        shards: this rank's parts of them, by name.
        grads: of their gradients in the bucket, by name.
    """

    def __init__(self, bucket: GradBucket, params: Mapping[str, torch.nn.Parameter], process_set: ProcessSet) -> None:
        self._bucket = bucket
        self.layout = plan = bucket.layout
        lengths = chunk_lengths(plan.flags, int(process_set.size() or 1))
        rank = int(process_set.rank() or 0)
        self.start = sum(lengths[:rank])
        self.stop = sum(lengths[: rank + 1])
        self.reduced = bucket.array[: plan.flags]
        self.array = memory.empty(plan.flags, bucket.array.dtype.name)
        flat = tensor_of(self.array, params[plan.names[0]])
        self.shards: dict[str, Shard] = {}
        self.grads: dict[str, torch.Tensor] = {}
        self.views = bucket.shaped(self.array)
        for piece, start in zip(plan.pieces, plan.starts, strict=True):
            param, name = params[piece.name], piece.name
            bucket.take(name)
            self.views[name].copy_(param.detach())
            param.data = self.views[name].data
            low, high = max(start, self.start), min(start + piece.length, self.stop)
            if low < high:
                part = torch.nn.Parameter(flat[low:high])
                self.shards[name] = Shard(low - start, high - start, part)
                self.grads[name] = bucket.flat[low:high]

    def take(self) -> None:
        """Let the bucket have what is in ``.grad``."""
        for name in self.views:
            self._bucket.take(name)

    def show(self, there: set[str]) -> None:
        """Let these gradients be what is in the bucket, also those that only other ranks have."""
        for name in there.intersection(self.views):
            self._bucket.show(name)


def check_shardable(optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor]) -> None:
    """Raise a ValueError if the optimizer looks at more than one element at a time, or parameters are on a GPU."""
    if any(param.device.type != "cpu" for param in params):
        raise ValueError(
            "sharded=True is for parameters in the CPU's memory. On a GPU leave it out, or shard with torch's own "
            "fully_shard()."
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
