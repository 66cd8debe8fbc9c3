"""When the gradients of an optimizer travel: hooks on its parameters, and what is left at ``step()``.

Parameters live longer than optimizers: a notebook's cell that makes an optimizer is run again and again on one model.
So a hook keeps nothing alive, and a new optimizer's hooks replace those of an older one.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from workbench import api, memory
from workbench.api import Adasum, Average, ReduceOp, Sum
from workbench.errors import CollectiveError
from workbench.torch.compression import Compression
from workbench.torch.flat import FlatBucket, can_be_flat, flat_buckets
from workbench.torch.ops import allreduce_async
from workbench.torch.sharded import Shards
from workbench.torch.wire import Wire
from workbench.training.gradients import GradientReducer

_REPLACED = (
    "Another DistributedOptimizer was made for the same parameters after this one, and has taken over from it. "
    "Use the new one."
)


class Gradients:
    """What DistributedOptimizer adds to an optimizer.

    Args:
        optimizer: the wrapped one.
        wire: how a gradient travels.
        op: how gradients become one.
        passes: backward passes per step.
        groups: names that travel together.
        sharded: each rank updates a part of the parameters.

    Attributes:
        shards: the parts, from the second step on.
        alone: there is nobody to average with.
        should_synchronize, synchronized: see ``skip_synchronize()``.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        wire: Wire,
        op: ReduceOp,
        passes: int,
        groups: Sequence[Sequence[str]],
        sharded: bool = False,
    ) -> None:
        self.optimizer, self.wire, self.sharded = optimizer, wire, sharded
        self.shards: Shards | None = None
        self.should_synchronize, self.synchronized = True, False
        self._op, self._names = op, {param: name for name, param in wire.params.items()}
        self._groups, self._planned_for = groups, object()
        self._hooks: dict[str, Hook] = {}
        self._replaced = False
        self.alone = self._is_alone()
        if sharded and any(param.device.type != "cpu" for param in wire.params.values()):
            raise ValueError(
                "sharded=True is for parameters in the CPU's memory, which the ranks of a machine can share; on a GPU "
                "leave it out, or shard with torch's own fully_shard()."
            )
        trained = [name for name, param in wire.params.items() if param.requires_grad]
        self.reducer = GradientReducer(trained, wire.entries, api.submit, passes, groups)
        for name in trained:
            self._watch(name)

    @property
    def adasum(self) -> bool:
        """Are changes of the weights combined, and no gradients?"""
        return self._op is Adasum and not self.alone

    def ready(self, name: str) -> None:
        """The hook: backward has finished a gradient. A dense one leaves at once, a sparse one at the step."""
        if self.alone or self.adasum or self.wire.topk:
            return
        if not self.reducer.in_flight:
            self._leave_buckets_of_old()
        bucket = self.wire.flat.get(name)
        if bucket is not None and not (bucket.suits(name) or self.reducer.in_flight):
            self._set_buckets([])  # the model has another dtype now
            bucket = None
        if bucket is not None:
            bucket.take(name)
        if bucket is not None or self.wire.dense(name) is not None:
            self.reducer.ready(name)

    def synchronize(self) -> None:
        """Reduce what is left, wait for all, and put the results into ``.grad``.

        Raises:
            RuntimeError: another optimizer has taken the parameters over.
            CollectiveError: a reduction failed.
        """
        if self._replaced:
            raise RuntimeError(_REPLACED)
        trained = self.trained()
        if self.alone or self.adasum:
            for name in trained:
                self.wire.dense(name)
            return
        if self.wire.topk:
            waits = {name: self.wire.gather(name) for name in trained}
        else:
            if not self.reducer.in_flight:
                self._leave_buckets_of_old()
            buckets, reduced = self.wire.flat, self.reducer.finish(trained)
            self._plan_buckets([name for name in trained if name not in buckets and reduced[name] is not None])
            self.wire.store(reduced, buckets)
            waits = self.wire.gather_sparse([name for name in trained if reduced[name] is None])
        for name, wait in waits.items():
            self.wire.params[name].grad = wait()

    def abandon(self) -> None:
        """End a step that was broken off: wait for what is on its way, and take no notice of it."""
        self._drop()
        self.synchronized = False
        self.alone = self._is_alone()  # the job may be another one

    def give_way(self) -> None:
        """Another optimizer takes the parameters over."""
        for hook in self._hooks.values():
            hook.remove()
        self._replaced = True
        self._drop()

    def average(self, loss: Any) -> Any:
        """The ranks' average of a loss; anything else as it is."""
        if self.alone or not isinstance(loss, (float, torch.Tensor)):
            return loss
        mine = torch.as_tensor(loss).detach().contiguous()
        mean = allreduce_async(mine, name="closure", process_set=self.wire.process_set).wait()
        return mean.item() if isinstance(loss, float) else mean

    def trained(self) -> list[str]:
        """What to reduce now: also what was added or unfrozen since the last step, without what was frozen."""
        found = [name for name in self.shards.names if self.wire.params[name].requires_grad] if self.shards else []
        for g, group in enumerate(self.optimizer.param_groups):
            for i, param in enumerate(group["params"]):
                if not param.requires_grad or (self.shards and self.shards.owns(param)):
                    continue
                name = self._names.setdefault(param, f"noname.{g}.{i}")
                found.append(name)
                if name not in self._hooks:
                    self.wire.params[name] = param
                    self.reducer.add(name)
                    self._watch(name)
        return found

    def _plan_buckets(self, new: Sequence[str]) -> None:
        """From the next step on these gradients live in buckets.

        The first time a gradient travels under its own name, so that ranks which disagree about it hear its name. What
        is decided here follows from the results alone, which are the same on every rank.
        """
        limit = memory.bucket_bytes()
        suits = self._op in (Average, Sum) and self.wire.compression is Compression.none and not self._groups
        new = [name for name in new if can_be_flat(self.wire.params[name])]
        if not (suits and limit and new):
            return
        if self.shards:
            return  # what comes later is updated as a whole on every rank
        names = [name for name in self.wire.params if name in self.wire.flat or name in new]
        self._set_buckets(flat_buckets(self.wire.params, names, limit))

    def hand_over(self) -> None:
        """If sharded, give the wrapped optimizer the gradients of its slices."""
        if self.sharded and not self.shards and self.wire.flat:
            buckets = list(dict.fromkeys(self.wire.flat.values()))
            self.shards = self.wire.shards = Shards(self.optimizer, self.wire.params, buckets, self.wire.process_set)
            for name in self.shards.names:
                self._hooks[name].in_common = True
        if self.shards:
            self.shards.check()
            self.shards.choose()

    def publish(self) -> None:
        """If sharded, wait until all ranks have updated their parts."""
        if self.shards:
            self.shards.publish()

    def complete(self) -> None:
        """If sharded, bring all gradients to all ranks."""
        if self.shards:
            self.shards.complete()

    def check_not_sharded(self) -> None:
        """Raise a ValueError if the wrapped optimizer holds slices."""
        if self.shards:
            raise ValueError("This optimizer is sharded already: make a new torch optimizer, and wrap that one.")

    def _set_buckets(self, buckets: Sequence[FlatBucket]) -> None:
        self.wire.flat = {name: bucket for bucket in buckets for name in bucket.views}
        self.reducer.regroup([*self._groups, *(tuple(bucket.views) for bucket in buckets)])
        self._planned_for = api.world()

    def _leave_buckets_of_old(self) -> None:
        """In another job other ranks may have come, who begin without buckets."""
        if self.wire.flat and self._planned_for is not api.world():
            if self.shards:
                self.shards.check()
            self._set_buckets([])

    def _drop(self) -> None:
        with suppress(CollectiveError):
            self.reducer.finish(())

    def _watch(self, name: str) -> None:
        param = self.wire.params[name]
        for old in list((param._post_accumulate_grad_hooks or {}).values()):
            if isinstance(old, Hook):
                old.remove()
                owner = old.owner()
                if owner is not None:
                    owner.give_way()
        self._hooks[name] = Hook(self, name, param)

    def _is_alone(self) -> bool:
        included = self.wire.process_set.included()
        if included is None:
            raise ValueError(f"{self.wire.process_set} is not registered. Call add_process_set() on every rank first.")
        return not included or self.wire.process_set.size() == 1


class Hook:
    """On a parameter: tells its owner, if there still is one, that the gradient is ready.

    Attributes:
        owner: weak, so that a model and its optimizer are freed as soon as nobody else has them.
        in_common: the parameter's memory is that of all ranks.
    """

    in_common = False

    def __init__(self, owner: Gradients, name: str, param: torch.nn.Parameter) -> None:
        self.owner, self._name, self._param = weakref.ref(owner), name, weakref.ref(param)
        self._handle = param.register_post_accumulate_grad_hook(self)

    def __call__(self, param: torch.Tensor) -> None:
        owner = self.owner()
        if owner is not None:
            owner.ready(self._name)

    def remove(self) -> None:
        """Hear no more of the parameter; it is this rank's own again."""
        self._handle.remove()
        param = self._param()
        if self.in_common and param is not None:
            self.in_common, param.data = False, param.data.clone()


__all__ = ["Gradients"]
