"""The parts that DistributedOptimizer adds to an optimizer: hooks on its parameters, and a source of gradients.

The path of a gradient::

    backward ──► Hook ──► GradientHooks.ready ──► source.ready ──► entries.submit_when_free ──► engine
    optimizer.step() ──► source.step ──► source.reduce: .grad holds the averages ──► the optimizer's own step

Parameters live longer than optimizers: a cell that creates an optimizer may run many times on the same model. So a hook
keeps no object alive, and the hooks of a new optimizer replace those of an older one.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Protocol

import torch

from workbench.core.messages import Progress
from workbench.job import api
from workbench.job.api import Adasum
from workbench.job.context import HOLDER
from workbench.job.process_sets import is_alone
from workbench.simulate.measured.plan import Plan
from workbench.torch.gradients.dense import DenseGradients
from workbench.torch.gradients.grads import Grads
from workbench.torch.gradients.local import LocalGradients, TopKGradients
from workbench.torch.gradients.pieces import submit_in_pieces
from workbench.torch.gradients.source import GradientSource
from workbench.torch.hooks import REPLACED, Arrivals, Hook, take_over
from workbench.torch.low_communication.periodic import refuse_periodic
from workbench.torch.optimizer.adasum import AdasumGradients
from workbench.torch.optimizer.deferred import Deferral, DeferredGradients
from workbench.torch.optimizer.initial_zeros import InitialZeros
from workbench.torch.sharded.stage1 import ShardedBuckets, Stage1Gradients
from workbench.training import progress
from workbench.training.step_count import StepCount

_NOT_REDUCED = (
    "optimizer.step() within skip_synchronize(): backward() has run on rank {} since gradients were last reduced, so "
    "they are this rank's alone. Call optimizer.synchronize() before, or step() without skip_synchronize()."
)


class ExactGradients(GradientSource, Protocol):
    """In exact mode of elastic training: gradients by logical shard.

    Attributes:
        ordinary_way: the source that reduces them when ranks and shards have the same order.
    """

    ordinary_way: GradientSource


class GradientHooks:
    """What DistributedOptimizer adds to an optimizer.

    Args:
        optimizer: the wrapped one.
        grads: those of its parameters.
        sharded: each rank updates a part of the parameters.
        overlap_forward: ``step()`` does not wait.

    Attributes:
        source: of the gradients.
        alone: there is no other rank to average with.
        deferral: the updates that are still to come.
        names: by parameter; parameters that are added later come last.
        hooks: by name.
        replaced: another optimizer has taken over.
        zeros: gradients before there are any.
        should_synchronize: False within ``skip_synchronize()``.
        synchronized: ``synchronize()`` has been called in this step.
        computed: backward has computed gradients since they were last reduced or cleared.
        keeping: True within ``no_sync()``.
        arrivals: of gradients.
        exact: in exact mode, its gradients.
        plan: what was chosen with ``plan=``.
    """

    exact: ExactGradients | None = None
    plan: Plan | None = None
    source: GradientSource

    def __init__(self, optimizer: torch.optim.Optimizer, grads: Grads, sharded: bool, overlap_forward: bool) -> None:
        refuse_periodic(optimizer)
        self.optimizer = optimizer
        self.grads = grads
        if grads.op is not Adasum:  # which combines steps that each rank makes by itself
            grads.order.read_progress = partial(_progress, optimizer, grads.params)
        self.sharded = sharded
        self.should_synchronize = True
        self.synchronized = False
        self.computed = False
        self.keeping = False
        self.arrivals = Arrivals()
        self.replaced = False
        self.names = {param: name for name, param in grads.params.items()}
        self.hooks: dict[str, Hook] = {}
        self._failures = 0  # of cells and collectives, when a gradient was last ready
        self.deferral = Deferral(optimizer, grads, weakref.ref(self))
        self._local = LocalGradients(grads)
        self._among_ranks = self._choose_kind(overlap_forward)
        self.choose_source()
        # Last: from here on an older optimizer has given way, and hooks of this one are called.
        for name, param in grads.params.items():
            if param.requires_grad:
                self._watch(name)
        self.zeros = InitialZeros(optimizer, grads.params)
        self.zeros.give()

    def _choose_kind(self, overlap_forward: bool) -> GradientSource:
        if self.grads.op is Adasum:
            return AdasumGradients(self.grads)
        if self.grads.sparse.topk:
            return TopKGradients(self.grads)
        if overlap_forward:
            return DeferredGradients(self.grads, submit_in_pieces, self.deferral)
        if self.sharded:
            return Stage1Gradients(self.grads, api.submit_when_free, self.optimizer, self.names)
        return DenseGradients(self.grads, api.submit_when_free)

    def choose_source(self, alone: bool | None = None) -> None:
        """Called when the optimizer is made, and again when the job may have changed.

        Args:
            alone: there is nobody to average with; None: as it is in this job.
        """
        self.alone = is_alone(self.grads.process_set) if alone is None else alone
        self.source = self._local if self.alone else self._among_ranks
        if self.exact is not None:
            self.exact.ordinary_way = self.source
            self.source = self.exact

    @property
    def steps(self) -> StepCount:
        return self.grads.steps

    @property
    def shards(self) -> ShardedBuckets | None:
        """The parts that the ranks update, after the first step, if it is sharded."""
        return self._among_ranks.shards if isinstance(self._among_ranks, Stage1Gradients) else None

    @property
    def adasum(self) -> bool:
        """Are changes of the weights combined, and no gradients?"""
        return self.grads.op is Adasum and not self.alone

    @property
    def unreduced(self) -> bool:
        """Are there gradients of this rank alone, with which no step may be made?"""
        return self.computed and not self.adasum and (not self.alone or self.exact is not None)

    def check_reduced(self) -> None:
        """Raise a RuntimeError if there are."""
        if self.unreduced:
            raise RuntimeError(_NOT_REDUCED.format(api.rank()))

    # --- amid backward --------------------------------------------------------------------------------

    def ready(self, name: str) -> None:
        self.forget_failed_cell()
        self.computed = True
        self.source.ready(name, self.keeping)

    def lend(self, name: str) -> torch.Tensor | None:
        return self.grads.lend(name)

    # --- at the step ----------------------------------------------------------------------------------

    def begin(self) -> list[str]:
        """Gradients are to be reduced now. What was added or unfrozen is among them, what is frozen is not.

        Returns:
            Their names.

        Raises:
            RuntimeError: another optimizer has taken the parameters over.
        """
        self.zeros.drop()
        if self.replaced:
            raise RuntimeError(REPLACED)
        names = self.trained()
        self.arrivals.check({(param := self.grads.params[name]): param.grad for name in names})
        return names

    def trained(self) -> list[str]:
        """Names of parameters that are not frozen now."""
        for g, group in enumerate(self.optimizer.param_groups):
            for i, param in enumerate(group["params"]):
                if not param.requires_grad:
                    continue
                name = self.names.setdefault(param, f"noname.{g}.{i}")
                if name not in self.hooks:
                    self.grads.params[name] = param
                    self._watch(name)
        return [name for name, param in self.grads.params.items() if name in self.hooks and param.requires_grad]

    def abandon(self) -> None:
        """End a step that was broken off: wait for what is in flight, and take no notice of it."""
        self.source.abandon()
        self.synchronized = False
        self.choose_source()

    def forget_failed_cell(self) -> None:
        """After a cell that failed not all ranks have come as far: a step that began in it is given up."""
        self.steps.announce(self.grads.order)
        context = HOLDER.find()
        failures = context.failures if context else 0
        if failures == self._failures:
            return
        self._failures = failures
        if self.source.restart():
            self.synchronized = False
            self.choose_source()

    def leave_lost_shards(self) -> bool:
        return isinstance(self._among_ranks, Stage1Gradients) and self._among_ranks.leave_lost()

    def give_way(self) -> None:
        for hook in self.hooks.values():
            hook.remove()
        self.replaced = True
        self.source.abandon()

    def _watch(self, name: str) -> None:
        param = self.grads.params[name]
        if isinstance(before := take_over(param), GradientHooks):
            self.grads.steps = before.steps  # the weights are the same
            self.grads.order.steps = before.grads.order.steps
        self.hooks[name] = Hook(self, name, param)


def _progress(optimizer: torch.optim.Optimizer, params: Mapping[str, torch.nn.Parameter]) -> Progress:
    """What must be equal on all ranks that train these."""
    parts = [torch.empty(0, dtype=torch.float64)]
    for _, param in sorted(params.items()):
        if param.requires_grad and not torch.nn.parameter.is_lazy(param):
            flat = torch.view_as_real(param.detach()).flatten() if param.is_complex() else param.detach().flatten()
            parts.append(flat[:: progress.stride(len(flat))].double().cpu())
    numbers = progress.hyperparameters(optimizer.param_groups, optimizer.defaults)
    return numbers + progress.weights(torch.cat(parts).numpy())
