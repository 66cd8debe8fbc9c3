"""When the gradients of an optimizer are reduced: hooks on its parameters, and what is left at ``step()``.

The path of a gradient::

    Hook ──► GradientHooks.ready ──► GradientReducer.ready ──► Grads.take, Grads.entries ──► entries.submit ──► engine
    .grad ◄── Grads.store ◄── GradientReducer.finish ◄── GradientHooks.synchronize ◄── optimizer.step()

Parameters live longer than optimizers: a notebook's cell that makes an optimizer is run again and again on one model.
So a hook keeps nothing alive, and a new optimizer's hooks replace those of an older one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from workbench.elastic.exact import InShards
from workbench.errors import CollectiveError
from workbench.job import api
from workbench.job.api import Adasum, Average, Sum
from workbench.job.context import HOLDER
from workbench.job.process_sets import is_alone
from workbench.torch.compression import Compression
from workbench.torch.grad_bucket import GradBucket
from workbench.torch.hooks import Hook, take_over
from workbench.torch.low_communication.periodic import refuse_periodic
from workbench.torch.optimizer.deferred import Deferral
from workbench.torch.optimizer.grads import Grads
from workbench.torch.optimizer.initial_zeros import InitialZeros
from workbench.torch.optimizer.pieces import submit_in_pieces
from workbench.torch.sharded.stage1 import Shards
from workbench.torch.tensors import fits_a_bucket
from workbench.training.memory import bucket_bytes
from workbench.training.step_count import StepCount
from workbench.training.step_reducer import GradientReducer


class GradientHooks:
    """What DistributedOptimizer adds to an optimizer.

    Args:
        optimizer, grads: the wrapped one, and those of its parameters.
        passes: backward passes per step.
        sharded, overlap_forward: each rank updates a part of the parameters; ``step()`` does not wait.

    Attributes:
        deferral: the updates that are still to come.
        names, hooks: by parameter, what is added later comes last; by name.
        alone, replaced: there is nobody to average with; another optimizer has taken over.
        steps: how many there were.
        zeros: gradients before there are any.
        should_synchronize, synchronized, keeping: see ``skip_synchronize()``; see ``no_sync()``.
        exact: in exact mode of elastic training, the gradients by logical shard.
    """

    exact: InShards | None = None

    def __init__(
        self, optimizer: torch.optim.Optimizer, grads: Grads, passes: int, sharded: bool, overlap_forward: bool
    ) -> None:
        refuse_periodic(optimizer)
        self.optimizer, self.grads, self.sharded = optimizer, grads, sharded
        self.should_synchronize, self.synchronized, self.keeping = True, False, False
        self.names = {param: name for name, param in grads.params.items()}
        self.hooks: dict[str, Hook] = {}
        self.deferral, self.replaced = Deferral(self, overlap_forward), False
        self.steps = StepCount()
        self._failures = 0  # of cells and collectives, when a gradient was last ready
        self.alone = is_alone(grads.process_set)
        trained = [name for name, param in grads.params.items() if param.requires_grad]
        self.reducer = GradientReducer(
            trained, grads, submit_in_pieces if overlap_forward else api.submit_when_free, passes
        )
        for name in trained:
            self._watch(name)
        self.zeros = InitialZeros(optimizer, grads.params)
        self.zeros.give()

    @property
    def shards(self) -> Shards | None:
        """The parts that the ranks update, from the second step on."""
        return self.grads.shards

    @property
    def adasum(self) -> bool:
        """Are changes of the weights combined, and no gradients?"""
        return self.grads.op is Adasum and not self.alone

    def ready(self, name: str) -> None:
        """Backward has finished a gradient: a dense one goes to the reducer, a sparse one waits for ``step()``."""
        self.deferral.check_used(name)
        if self.exact is not None:
            if not self.keeping:
                self.exact.ready(name)
            if not self.exact.ordinary:
                return
        if self.alone or self.adasum or self.grads.sparse.topk:
            return
        self.forget_failed_cell()
        if self.keeping:
            self.reducer.check_not_sent(name)
        else:
            self.reducer.ready(name)

    @property
    def may_defer(self) -> bool:
        """May updates come after ``step()``?"""
        return not (self.alone or self.replaced or self.exact is not None)

    def lend(self, name: str) -> torch.Tensor | None:
        """See :meth:`Grads.lend`."""
        return self.grads.lend(name)

    def synchronize(self) -> None:
        """Reduce what is left, wait for all, and put the results into ``.grad``.

        Raises:
            RuntimeError: another optimizer has taken the parameters over.
            CollectiveError: a reduction failed.
        """
        self.deferral.finish()
        if self.replaced:
            raise RuntimeError(
                "Another DistributedOptimizer was made for the same parameters after this one, and has taken over from "
                "it. Use the new one."
            )
        if self.exact is not None:
            self.exact.check_done()
            if not self.exact.ordinary:
                self.exact.synchronize()
                return
        trained, grads, sparse = self.trained(), self.grads, self.grads.sparse
        if self.adasum or (sparse.topk and not self.alone):  # else a gradient that was ready has done it
            self.forget_failed_cell()
        if self.alone or self.adasum:
            for name in trained if sparse.dims is None else ():
                grads.by_name.dense(name)
            return
        if sparse.topk:
            with self.steps.comparing(grads.order):
                gathered = {name: wait() for name, wait in {name: sparse.gather(name) for name in trained}.items()}
            for name, grad in gathered.items():
                grads.params[name].grad = grad
            return
        with self.steps.comparing(grads.order):
            reduced = self.reducer.finish(trained)
        self.store(reduced, grads.buckets)

    def store(self, reduced: dict[str, Any], buckets: Mapping[str, GradBucket]) -> None:
        """Put results into ``.grad``; where no rank has a dense gradient, gather the sparse ones."""
        grads, sparse = self.grads, self.grads.sparse
        # Before the results are stored, which may fail on one rank: all ranks are to plan alike.
        self._plan_buckets([name for name, result in reduced.items() if name not in buckets and result is not None])
        grads.store(reduced, buckets)
        if sparse.dims is not None:
            sparse.give_form_back([name for name, result in reduced.items() if result is not None])
        rest = [name for name, result in reduced.items() if result is None]
        waits = sparse.gather_all(rest) if rest else {}
        for name, wait in waits.items():
            grads.params[name].grad = wait()

    def trained(self) -> list[str]:
        """What to reduce now: also what was added or unfrozen since the last step, without what was frozen."""
        params, shards = self.grads.params, self.shards
        found = [name for name in shards.names if params[name].requires_grad] if shards else []
        for g, group in enumerate(self.optimizer.param_groups):
            for i, param in enumerate(group["params"]):
                if not param.requires_grad or (shards and shards.owns(param)):
                    continue
                name = self.names.setdefault(param, f"noname.{g}.{i}")
                found.append(name)
                if name not in self.hooks:
                    params[name] = param
                    self.reducer.add(name)
                    self._watch(name)
        return found

    def _plan_buckets(self, new: Sequence[str]) -> None:
        """From the next step on these gradients live in buckets.

        The first time a gradient is reduced under its own name, so that ranks which disagree about it hear its name.
        What is decided here follows from the results alone, which are the same on every rank.
        """
        grads, limit = self.grads, self.deferral.limit(bucket_bytes())
        suits = grads.op in (Average, Sum) and grads.compression is Compression.none and not grads.groups
        new = [name for name in new if fits_a_bucket(grads.params[name])]
        if suits and limit and new and not self.shards:  # else, what comes later is updated as a whole on every rank
            grads.plan([name for name in grads.params if name in grads.buckets or name in new], limit)
            self.deferral.planned()

    def abandon(self) -> None:
        """End a step that was broken off: wait for what is in flight, and take no notice of it."""
        self._drop()
        self.synchronized = False
        self.alone = is_alone(self.grads.process_set)  # the job may be another one

    def forget_failed_cell(self) -> None:
        """After a cell that failed not all ranks have come as far: a step that began in it is given up.

        And gradients are reduced by name once more, for some ranks may not have come to where buckets are planned.
        """
        self.steps.announce(self.grads.order)
        context = HOLDER.find()
        failures = context.failures if context else 0
        if failures == self._failures:
            return
        self._failures = failures
        if self.reducer.begun:
            self.abandon()
        if self.grads.buckets and not self.shards:
            self.grads.set_buckets([])
        self.grads.by_name.restart()

    def give_way(self) -> None:
        """Another optimizer takes the parameters over."""
        for hook in self.hooks.values():
            hook.remove()
        self.replaced = True
        self._drop()

    def _drop(self) -> None:
        with suppress(CollectiveError):
            self.reducer.finish(())
        self.deferral.settle()

    def _watch(self, name: str) -> None:
        param = self.grads.params[name]
        if isinstance(before := take_over(param), GradientHooks):
            self.steps = before.steps  # the weights are the same
            self.grads.order.steps = before.grads.order.steps
        self.hooks[name] = Hook(self, name, param)


def begin_step(hooks: GradientHooks) -> None:
    """A step begins. If it is sharded, give the wrapped optimizer the gradients of its slices."""
    grads = hooks.grads
    if hooks.sharded and not grads.shards and grads.buckets:
        buckets = list(dict.fromkeys(grads.buckets.values()))
        grads.shards = Shards(hooks.optimizer, grads.params, buckets, grads.process_set)
        for name in grads.shards.names:
            hooks.hooks[name].in_common = True
    if grads.shards:
        grads.shards.check()
        grads.shards.choose()


def leave_lost_shards(hooks: GradientHooks) -> bool:
    """In another job than that of the shards: whole parameters again, without state. False if there are none."""
    shards = hooks.shards
    if shards is None or not shards.lost:
        return False
    for name in shards.names:
        hooks.hooks[name].in_common = False
    shards.dissolve()
    hooks.grads.shards = None
    hooks.grads.set_buckets([])
    return True


__all__ = ["GradientHooks"]
