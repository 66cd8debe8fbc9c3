"""A step of ZeRO 2 and 3: what is divided, this rank's part of the gradients, and what the others get afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from workbench.job import api
from workbench.job.process_sets import ProcessSet
from workbench.torch.compiled import not_traced
from workbench.torch.hooks import take_over
from workbench.torch.sharded.alike import Agreement, Progress, check_alike, divisible
from workbench.torch.sharded.backward import Backward
from workbench.torch.sharded.flat import Flat, Members, uneven
from workbench.torch.sharded.released import refuse_divided
from workbench.torch.sharded.slices import Slices
from workbench.torch.sharded.stage3 import STAGE as PARAMETERS
from workbench.torch.sharded.stage3 import home_of
from workbench.training.memory import bucket_bytes

GRADIENTS = "gradients"
_REPLACED = (
    "Another DistributedOptimizer was made for the same parameters after this one, and has taken over from it. Use the "
    "new one."
)
_LOST = (
    "This DistributedOptimizer(sharded={!r}) belongs to a job that has ended, and the other ranks' parts with it. "
    "Make model and optimizer anew, and load what hvd.full_state_dict(model) and state_dict() gave before."
)
_EQUALLY = (
    "With sharded='gradients' or 'parameters' all ranks make equally many backward passes before each step. A rank "
    "that has no data left makes one over an empty sum: (model(x).sum() * 0).backward()."
)
_MOVED = (
    "The memory of parameter {!r} has been replaced (by model.to(), say) since this DistributedOptimizer(sharded={!r}) "
    "was made, and what it updates is no longer the model's. Make a new one."
)


class Sharded:
    """What a ShardedOptimizer adds to an optimizer.

    Args:
        optimizer: the wrapped one; its parameters are replaced by slices.
        params: by name.
        stage: ``gradients`` or ``parameters``.
        process_set: who shares.

    Attributes:
        backward: sends the gradients.
        slices: what is updated here.
        whole: parameters that are not divided, for they have no elements.
        zeros, sharded, shards: what else this project looks at in any DistributedOptimizer.
        synchronized: the slices have their gradients.
        name: of what this trains, the same on all ranks, and of nothing else.
    """

    zeros, sharded, shards = None, True, True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: dict[str, torch.nn.Parameter],
        stage: str,
        process_set: ProcessSet,
    ) -> None:
        self.optimizer, self.stage, self.job = optimizer, stage, api.world()
        self.synchronized = False
        self._model = self._home(params) if stage == PARAMETERS else None
        if self._model is None:
            refuse_divided(params, stage)
        self.members = self._model.members if self._model else Members.of(process_set)
        self.backward = self._model.backward if self._model else Backward([])
        number = self._model.number if self._model else check_alike(params, self.members)
        self.name = f"model {number}, {next(iter(params), 'no parameter')} ..."
        self._agreement = Agreement(self.members, self.name)
        self._updates, self._complete, self._loaded = 0, True, bool(optimizer.state)
        self.slices = Slices(optimizer, self.members.process_set if self.members.size > 1 else None, self.name)
        self.whole: dict[str, torch.nn.Parameter] = {}
        self._before: set[str] = set()  # names that had a gradient in the last step
        self._divide(params, number)
        self.backward.owner = weakref.ref(self)

    # --- what is divided ------------------------------------------------------------------------------

    def add(self, params: Mapping[str, torch.nn.Parameter]) -> None:
        """Divide more parameters; all members call it.

        Raises:
            MismatchError: the ranks have not the same.
            ValueError: not with stage 3, where ``shard_parameters`` divides.
        """
        self._divide(params, 0 if self.stage == PARAMETERS else check_alike(params, self.members))

    def _divide(self, params: Mapping[str, torch.nn.Parameter], number: int) -> None:
        if self.stage == PARAMETERS:
            self._cut(params, self._home(params).flats)
            return
        for param in params.values():
            take_over(param)
        flats = [
            Flat({name: params[name] for name in names}, self.members, kept=True, stage=self.stage, number=number)
            for names in _buckets(divisible(params, self.stage))
        ]
        self.backward.add(flats)
        self._cut(params, flats)

    def _cut(self, params: Mapping[str, torch.nn.Parameter], flats: Sequence[Flat]) -> None:
        mine = set(params.values())
        known = {name: param for flat in flats for name, param in flat.params.items() if param in mine}
        parts = {name: part for flat in flats for name, part in flat.slices().items() if name in known}
        self.slices.cut(known, parts, {name: p.like for flat in flats for name, p in flat.places.items()})
        divided = set(known.values())
        self.whole |= {name: param for name, param in params.items() if param not in divided}

    def _home(self, params: Mapping[str, torch.nn.Parameter]) -> Any:
        home = home_of(params.values())
        left = [name for name, p in divisible(params, self.stage).items() if not hasattr(p, "owner")]
        if home is None or left:
            raise ValueError(
                f"sharded={self.stage!r}: {', '.join(left[:3]) or 'no parameter'} is not divided. Call "
                "hvd.shard_parameters(model) before the optimizer is made."
            )
        if other := [name for name, p in params.items() if hasattr(p, "owner") and p.owner.home is not home]:
            raise ValueError(
                f"sharded={self.stage!r}: {other[0]!r} belongs to another divided model than the first parameter. Make "
                "one optimizer for each, or put both in one torch.nn.ModuleList and call hvd.shard_parameters on that."
            )
        return home

    # --- a step ---------------------------------------------------------------------------------------

    @not_traced
    def reduce(self) -> None:
        """Wait until this rank's parts of all gradients are there, and give them to the slices."""
        self.check()
        with uneven(_EQUALLY):
            self.backward.finish()
            self._compare()

    def _compare(self) -> None:
        """Ask which gradients there are on any rank, and give these to the slices."""
        names = [name for flat in self.backward.flats for name in flat.params]
        here = {name for flat in self.backward.flats for name in flat.there}
        present = self._agreement.any_of([name in here for name in names], self._progress())
        there = {name for name, found in zip(names, present, strict=True) if found}
        for flat in self.backward.flats:
            for name in flat.params:
                part = self.slices.parts.get(name)
                if part is not None:
                    part.param.grad = flat.part_of_grad(name) if name in there else None
        self._before, self.synchronized = there, True

    def _progress(self) -> Progress:
        sent = tuple(flat.sent for flat in self.backward.flats)
        return Progress(self._updates, self._complete, sent, self._loaded)

    @not_traced
    def begin_update(self) -> None:
        """All ranks have gradients, and update their parts next. Until they have published these, a step is torn.

        Also where :meth:`reduce` was called before: what a rank gathers before an update is not to meet what another
        gathers after it.
        """
        if not self.synchronized or self.backward.begun:
            self.reduce()
        else:
            self.check()
            with uneven(_EQUALLY):
                self._agreement.any_of([], self._progress())
        self._complete = False

    @not_traced
    def publish(self) -> None:
        """After the update: gradients are used up, and in stage 2 every rank gets all parameters."""
        self._updates, self._loaded, self.synchronized = self._updates + 1, False, False
        for part in self.slices.parts.values():
            part.param.grad = None
        for flat in self.backward.flats:
            flat.forget()
        if self._model:
            self._model.settle()
        for flat in self.backward.flats if self.stage == GRADIENTS else ():
            if not self._before.isdisjoint(flat.params):
                flat.publish()
        self._complete = True

    def loaded(self) -> None:
        """A state was loaded: what was broken off before does not matter any more."""
        self._updates, self._complete, self._loaded = 0, True, True

    @not_traced
    def zero(self, set_to_none: bool) -> None:
        """Drop the gradients, or let all that were there in the last step be 0."""
        self.synchronized = False
        self.backward.drop()
        for flat in self.backward.flats:
            if not set_to_none and (known := self._before.intersection(flat.params)):
                flat.grad = torch.zeros_like(flat.mine)
                flat.there |= known

    def check(self) -> None:
        """Raise a RuntimeError if this is no longer what the model trains with."""
        if self.backward.replaced or self.backward.owner() is not self:
            raise RuntimeError(_REPLACED)
        if self.job is not api.world():
            raise RuntimeError(_LOST.format(self.stage))
        if self._model and self._model.held:
            raise RuntimeError("step() within hvd.full_parameters(model) would be undone when it ends. Call it after.")
        for flat in self.backward.flats:
            if name := flat.moved():
                raise RuntimeError(_MOVED.format(name, self.stage))


def _buckets(params: Mapping[str, torch.nn.Parameter]) -> list[list[str]]:
    """Names of parameters that share an array: in the order in which backward comes to them, of one dtype.

    Frozen ones are apart, so that nothing is sent for them.
    """
    limit = bucket_bytes() or 1
    found: list[list[str]] = []
    open_ones: dict[Any, tuple[list[str], int]] = {}
    for name, param in reversed(list(params.items())):
        kind, nbytes = (param.dtype, param.requires_grad), param.numel() * param.element_size()
        names, filled = open_ones.get(kind, ([], 0))
        if names and filled + nbytes > limit:
            names, filled = [], 0
        if not names:
            found.append(names)
        names.append(name)
        open_ones[kind] = names, filled + nbytes
    return found


__all__ = ["GRADIENTS", "PARAMETERS", "Sharded"]
