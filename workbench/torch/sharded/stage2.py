"""A step of ZeRO 2 and 3: what is sharded, this rank's part of the gradients, and what the others get afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from workbench.core.buckets import Piece, plan_by_place
from workbench.job import api
from workbench.job.process_sets import ProcessSet
from workbench.torch.compiled import not_traced
from workbench.torch.hooks import REPLACED, take_over
from workbench.torch.sharded.backward import Backward
from workbench.torch.sharded.consistency import (
    ConsistencyCheck,
    Progress,
    ReplicatedWeights,
    check_consistency,
    shardable,
)
from workbench.torch.sharded.flat_parameter import (
    GRADIENTS,
    MOVED,
    PARAMETERS,
    SKIPPED,
    FlatParameter,
    Members,
    sharded_model_of,
    uneven,
)
from workbench.torch.sharded.resharded import refuse_sharded
from workbench.torch.sharded.shards import ShardedState
from workbench.torch.tensors import dtype_name
from workbench.training.memory import bucket_bytes
from workbench.training.progress import hyperparameters

_ONE_EACH = (
    "Another DistributedOptimizer was made for other parameters of the same model ({} ...), and this one, for {} ..., "
    "cannot step any more: a model that hvd.shard_parameters has divided has one optimizer. Make one, with parameter "
    "groups; or call hvd.shard_parameters for each part of the model that has an optimizer of its own."
)
_LOST = (
    "This DistributedOptimizer(sharded={!r}) belongs to a job that has ended, and the other ranks' parts with it. "
    "Create model and optimizer again, and load the earlier results of hvd.full_state_dict(model) and state_dict()."
)
_EQUALLY = (
    "With sharded='gradients' or 'parameters' all ranks make the same number of backward passes before each step, and "
    "equally many steps. A rank that has no data left makes a pass over an empty sum: (model(x).sum() * 0).backward(). "
    + SKIPPED
)


class Stage2Gradients:
    """What a ShardedOptimizer adds to an optimizer: gradients of which each rank keeps its shard.

    It has the members of a :class:`~workbench.torch.gradients.source.GradientSource` but one: hooks hand gradients to
    :class:`Backward`, which with stage 3 is the model's, and there before any optimizer.

    Args:
        optimizer: the wrapped one; its parameters are replaced by shards.
        params: by name.
        stage: ``gradients`` or ``parameters``.
        process_set: who shares.

    Attributes:
        backward: sends the gradients.
        state: what is updated here.
        replicated: parameters that are not sharded, for they have no elements.
        zeros: there are none in place of gradients, as InitialZeros has them.
        shards: it is sharded, and not to be wrapped again.
        synchronized: the shards have their gradients.
        name: of what this trains, the same on all ranks, and of nothing else.
    """

    zeros = None
    shards = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: dict[str, torch.nn.Parameter],
        stage: str,
        process_set: ProcessSet,
    ) -> None:
        self.optimizer = optimizer
        self.stage = stage
        self.job = api.world()
        self.synchronized = False
        self._model = self._sharded_model(params) if stage == PARAMETERS else None
        if self._model is None:
            refuse_sharded(params, stage)
        self.members = self._model.members if self._model else Members.of(process_set)
        self.backward = self._model.backward if self._model else Backward([])
        number = self._model.number if self._model else check_consistency(params, self.members)
        self.name = f"model {number}, {next(iter(params), 'no parameter')} ..."
        self._updates = 0
        self._complete = True
        self._loaded = bool(optimizer.state)
        self.state = ShardedState(optimizer, self.members.process_set if self.members.size > 1 else None, self.name)
        self.replicated: dict[str, torch.nn.Parameter] = {}
        self._params: dict[torch.nn.Parameter, str] = {}
        self._before: set[str] = set()  # names that had a gradient in the last step
        self._shard(params, number)
        self._consistency = self._check()
        self.backward.owner = weakref.ref(self)

    # --- what is sharded ------------------------------------------------------------------------------

    def add(self, params: Mapping[str, torch.nn.Parameter]) -> None:
        """Shard more parameters; all members call it.

        Raises:
            MismatchError: the ranks have not the same.
            ValueError: not with stage 3, where ``shard_parameters`` shards.
        """
        self._shard(params, 0 if self.stage == PARAMETERS else check_consistency(params, self.members))
        self._consistency = self._check()

    def _check(self) -> ConsistencyCheck:
        flats = [flat.full for flat in self.backward.flats]
        weights = ReplicatedWeights(self._params, flats) if self.stage == GRADIENTS else None
        return ConsistencyCheck(self.members, self.name, weights)

    def _shard(self, params: Mapping[str, torch.nn.Parameter], number: int) -> None:
        if self.stage == PARAMETERS:
            self._cut(params, self._sharded_model(params).flats)
            return
        for param in params.values():
            take_over(param)
        flats = [
            FlatParameter(
                {name: params[name] for name in names}, self.members, kept=True, stage=self.stage, number=number
            )
            for names in _buckets(shardable(params, self.stage))
        ]
        self.backward.add(flats)
        self._cut(params, flats)

    def _cut(self, params: Mapping[str, torch.nn.Parameter], flats: Sequence[FlatParameter]) -> None:
        mine = set(params.values())
        self._params |= {param: name for name, param in params.items()}
        known = {name: param for flat in flats for name, param in flat.params.items() if param in mine}
        parts = {name: part for flat in flats for name, part in flat.shards().items() if name in known}
        self.state.cut(known, parts, {name: p.like for flat in flats for name, p in flat.spans.items()})
        sharded = set(known.values())
        self.replicated |= {name: param for name, param in params.items() if param not in sharded}

    def _sharded_model(self, params: Mapping[str, torch.nn.Parameter]) -> Any:
        model = sharded_model_of(params.values())
        left = [name for name, p in shardable(params, self.stage).items() if not hasattr(p, "owner")]
        if model is None or left:
            raise ValueError(
                f"sharded={self.stage!r}: {', '.join(left[:3]) or 'no parameter'} is not divided. Call "
                "hvd.shard_parameters(model) before the optimizer is made."
            )
        if other := [name for name, p in params.items() if hasattr(p, "owner") and p.owner.model is not model]:
            raise ValueError(
                f"sharded={self.stage!r}: {other[0]!r} belongs to another divided model than the first parameter. Make "
                "one optimizer for each, or put both in one torch.nn.ModuleList and call hvd.shard_parameters on that."
            )
        return model

    # --- a step ---------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        return self.backward.begun

    @not_traced
    def reduce(self) -> None:
        """Wait until this rank's parts of all gradients are there, and give them to the shards."""
        self.check()
        with uneven(_EQUALLY):
            self.backward.finish()
            self._compare()

    def _compare(self) -> None:
        """Ask which gradients there are on any rank, and give these to the shards."""
        names = [name for flat in self.backward.flats for name in flat.params]
        here = {name for flat in self.backward.flats for name in flat.with_gradient}
        present = self._consistency.any_of([name in here for name in names], self._progress())
        there = {name for name, found in zip(names, present, strict=True) if found}
        for flat in self.backward.flats:
            for name in flat.params:
                part = self.state.shards.get(name)
                if part is not None:
                    part.param.grad = flat.part_of_grad(name) if name in there else None
        self._before = there
        self.synchronized = True

    def _progress(self) -> Progress:
        sent = tuple(flat.sent for flat in self.backward.flats)
        numbers = hyperparameters(self.optimizer.param_groups, self.optimizer.defaults)
        touched = self._consistency.weights.touched()
        return Progress(self._updates, self._complete, sent, self._loaded, numbers, touched)

    def step(self, update: Callable[[], Any]) -> None:
        """Let the wrapped optimizer update this rank's shards, and the others have them."""
        self._begin_update()
        update()
        self._publish()

    def abandon(self) -> None:
        """A step was broken off: wait for what is in flight, and drop all gradients."""
        self.backward.drop()
        self.synchronized = False

    @not_traced
    def _begin_update(self) -> None:
        """All ranks have gradients, and update their parts next. Until they have published these, a step is torn.

        Also where :meth:`reduce` was called before: what a rank gathers before an update is not to meet what another
        gathers after it.
        """
        if not self.synchronized or self.backward.begun:
            self.reduce()
        else:
            self.check()
            with uneven(_EQUALLY):
                self._consistency.any_of([], self._progress())
        self._complete = False

    @not_traced
    def _publish(self) -> None:
        """After the update: gradients are used up, and in stage 2 every rank gets all parameters."""
        self._updates += 1
        self._loaded = False
        self.synchronized = False
        for part in self.state.shards.values():
            part.param.grad = None
        for flat in self.backward.flats:
            flat.forget()
        if self._model:
            self._model.end_passes()
        for flat in self.backward.flats if self.stage == GRADIENTS else ():
            if not self._before.isdisjoint(flat.params):
                flat.all_gather()
        self._consistency.weights.note()
        self._complete = True

    def loaded(self) -> None:
        """A state was loaded: what was broken off before does not matter any more."""
        self._updates = 0
        self._complete = True
        self._loaded = True

    @not_traced
    def zero(self, set_to_none: bool) -> None:
        """Drop the gradients, or let all that were there in the last step be 0."""
        self.abandon()
        for flat in self.backward.flats:
            if not set_to_none and (known := self._before.intersection(flat.params)):
                flat.grad = torch.zeros_like(flat.shard)
                flat.with_gradient |= known

    def check(self) -> None:
        """Raise a RuntimeError if this is no longer what the model trains with."""
        owner = self.backward.owner()
        if isinstance(owner, Stage2Gradients) and self._params.keys().isdisjoint(owner._params):
            mine, other = (repr(next(iter(each._params.values()))) for each in (self, owner))
            raise RuntimeError(_ONE_EACH.format(other, mine))
        if self.backward.replaced or owner is not self:
            raise RuntimeError(REPLACED)
        if self.job is not api.world():
            raise RuntimeError(_LOST.format(self.stage))
        if self._model and self._model.keeps_full:
            raise RuntimeError("step() within hvd.full_parameters(model) would be undone when it ends. Call it after.")
        for flat in self.backward.flats:
            if name := flat.moved():
                raise RuntimeError(MOVED.format(name, self.stage))


def _buckets(params: Mapping[str, torch.nn.Parameter]) -> list[tuple[str, ...]]:
    """Names of parameters that share an array. Frozen ones are apart, so that nothing is sent for them."""
    pieces = [
        (param.requires_grad, param.element_size(), Piece(name, param.numel(), dtype_name(param)))
        for name, param in params.items()
    ]
    return [bucket.names for bucket in plan_by_place(pieces, bucket_bytes() or 1)]
