"""``DistributedOptimizer(..., sharded="gradients")`` and ``sharded="parameters"``: ZeRO 2 and 3.

A step: wait for the gradients (``backward.py``), ask which parameters any rank has a gradient of, let the wrapped
optimizer step on this rank's slices, and in stage 2 bring every rank's slices to all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from workbench import api
from workbench.api import Average, ReduceOp
from workbench.core.messages import Kind
from workbench.process_sets import ProcessSet, global_process_set
from workbench.torch.compiled import not_traced
from workbench.torch.ops import allreduce_async
from workbench.torch.optimizer.gradient_hooks import take_over
from workbench.torch.optimizer.sharded import check_elementwise
from workbench.torch.sharded.alike import check_alike, divisible
from workbench.torch.sharded.backward import Backward
from workbench.torch.sharded.flat import Flat, Members
from workbench.torch.sharded.norm import clip_factor, total_norm
from workbench.torch.sharded.released import refuse_divided
from workbench.torch.sharded.slices import Slices
from workbench.torch.sharded.stage3 import STAGE as PARAMETERS
from workbench.torch.sharded.stage3 import home_of
from workbench.torch.tensors import Compression
from workbench.torch.wrapping import Named, Wrapping, by_name
from workbench.training.buckets import bucket_bytes
from workbench.training.compression import Compressor

GRADIENTS = "gradients"
_STAGES = (False, True, "optimizer", GRADIENTS, PARAMETERS)
_REPLACED = (
    "Another DistributedOptimizer was made for the same parameters after this one, and has taken over from it. Use the "
    "new one."
)
_LOST = (
    "This DistributedOptimizer(sharded={!r}) belongs to a job that has ended, and the other ranks' parts with it. "
    "Make model and optimizer anew, and load what hvd.full_state_dict(model) and state_dict() gave before."
)
_MOVED = (
    "The memory of parameter {!r} has been replaced (by model.to(), say) since this DistributedOptimizer(sharded={!r}) "
    "was made, and what it updates is no longer the model's. Make a new one."
)
_SCALER = (
    "GradScaler would look at a part of the gradients only, and the ranks would disagree about infinities. "
    "Use bfloat16, which needs no GradScaler, or leave sharded out."
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
        self.members = self._model.members if self._model else Members.of(process_set)
        self.backward = self._model.backward if self._model else Backward([])
        self.slices = Slices(optimizer, self.members.process_set if self.members.size > 1 else None)
        self.whole: dict[str, torch.nn.Parameter] = {}
        self._before: set[str] = set()  # names that had a gradient in the last step
        self.add(params)
        self.backward.owner = weakref.ref(self)

    # --- what is divided ------------------------------------------------------------------------------

    def add(self, params: Mapping[str, torch.nn.Parameter]) -> None:
        """Divide more parameters; all members call it.

        Raises:
            MismatchError: the ranks have not the same.
            ValueError: not with stage 3, where ``shard_parameters`` divides.
        """
        if self.stage == PARAMETERS:
            self._cut(params, self._home(params).flats)
            return
        refuse_divided(params, self.stage)
        check_alike(params, self.members)
        for param in params.values():
            take_over(param)
        flats = [
            Flat({name: params[name] for name in names}, self.members, kept=True, stage=self.stage)
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
        return home

    # --- a step ---------------------------------------------------------------------------------------

    @not_traced
    def reduce(self) -> None:
        """Wait until this rank's parts of all gradients are there, and give them to the slices."""
        self.check()
        self.backward.finish()
        there = self._there()
        for flat in self.backward.flats:
            for name in flat.params:
                part = self.slices.parts.get(name)
                if part is not None:
                    part.param.grad = flat.part_of_grad(name) if name in there else None
        self._before, self.synchronized = there, True

    def _there(self) -> set[str]:
        """Names of parameters of which some rank has a gradient."""
        names = [name for flat in self.backward.flats for name in flat.params]
        here = {name for flat in self.backward.flats for name in flat.there}
        present = np.array([name in here for name in names], np.uint8)
        if self.members.size > 1 and names:
            about: dict[str, Any] = {"op": api.Max, "target": present, "process_set": self.members.process_set}
            entry = api.entry(Kind.ALLREDUCE, present, "which gradients there are", **about)
            api.submit([entry], at_once=True)[0].wait()
        return {name for name, found in zip(names, present.tolist(), strict=True) if found}

    @not_traced
    def publish(self) -> None:
        """After the update: gradients are used up, and in stage 2 every rank gets all parameters."""
        self.synchronized = False
        for flat in self.backward.flats:
            flat.forget()
            if self.stage == GRADIENTS and not self._before.isdisjoint(flat.params):
                flat.publish()
        for part in self.slices.parts.values():
            part.param.grad = None

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


class ShardedOptimizer(Wrapping):
    """Wrap an optimizer so that each rank keeps and updates its part of the parameters.

    ``hvd.DistributedOptimizer(..., sharded="gradients")`` or ``"parameters"`` makes it. All ranks make it alike.

    ``"gradients"``: a bucket of gradients is reduce-scattered when its last one is ready; each rank keeps its part and
    frees the rest. After the step the ranks gather each other's parts of the parameters.

    ``"parameters"``: ``hvd.shard_parameters(model)`` comes before. Parameters are gathered for each layer's forward and
    backward pass.

    What differs from other DistributedOptimizers. The model's ``.grad`` is None after backward: :meth:`clip_grad_norm_`
    clips. Gradients are used up by ``step()``, so ``zero_grad()`` may be left out. Any number of backward passes may
    come before a step; each is sent, unless within :meth:`no_sync`. ``state_dict()`` is whole, and a collective.

    Args:
        optimizer: SGD, Adam or another of ``torch.optim`` that treats each element by itself.
        named_parameters: ``model.named_parameters()``.
        backward_passes_per_step: accepted, and not needed.
        process_set: the ranks that share, with ``"gradients"``; else ``shard_parameters`` has been told.
        sharded: ``"gradients"`` or ``"parameters"``.
        compression, op, gradient_predivide_factor, num_groups, groups, sparse_as_dense, overlap_forward: refused, but
            for their defaults.

    Raises:
        ValueError: what does not go with it, by name.
        MismatchError: the ranks have different parameters.
    """

    _distributed: Sharded

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Named | None = None,
        compression: Compressor = Compression.none,
        backward_passes_per_step: int = 1,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
        *,
        sharded: bool | str = GRADIENTS,
        overlap_forward: bool = False,
    ) -> None:
        if sharded not in (GRADIENTS, PARAMETERS):
            raise ValueError(f"sharded={sharded!r}: give one of {', '.join(map(repr, _STAGES))}.")
        if isinstance(optimizer, Wrapping):
            raise ValueError("This is a DistributedOptimizer already: make a new torch optimizer, and wrap that one.")
        refused = {
            "compression": compression is not Compression.none,
            f"op={op.value}": op is not Average,
            "gradient_predivide_factor": gradient_predivide_factor != 1.0,
            "groups": bool(num_groups) or groups is not None,
            "sparse_as_dense": sparse_as_dense,
            "overlap_forward": overlap_forward,
        }
        if wrong := [name for name, is_wrong in refused.items() if is_wrong]:
            raise ValueError(f"sharded={sharded!r} does not go with {', '.join(wrong)}. Leave one of them out.")
        if backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: must be ≥ 1.")
        check_elementwise(optimizer, f"sharded={sharded!r}", "updates slices of parameters, and {} may need whole ones")
        self._distributed = Sharded(optimizer, by_name(optimizer, named_parameters), str(sharded), process_set)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for this rank's part of the gradients, update its part of the parameters.

        Args:
            closure: evaluates the model again and returns the loss, of which all ranks get the mean.

        Raises:
            CollectiveError: a reduction failed; no parameter has changed.
            RuntimeError: another DistributedOptimizer has taken the parameters over, or the job has ended.
        """
        mine, loss = self._distributed, None
        if closure is not None:
            with torch.enable_grad():
                loss = self._mean(closure())
        if not mine.synchronized or mine.backward.begun:
            mine.reduce()
        mine.optimizer.step()
        mine.publish()
        return loss

    def _mean(self, loss: Any) -> Any:
        """Over the ranks; anything but a number as it is."""
        mine = self._distributed
        if mine.members.size == 1 or not isinstance(loss, (float, torch.Tensor)):
            return loss
        here = torch.as_tensor(loss).detach().contiguous()
        mean = allreduce_async(here, name="closure", process_set=mine.members.process_set).wait()
        return mean.item() if isinstance(loss, float) else mean

    def synchronize(self) -> None:
        """Wait until this rank's part of all gradients is there; ``step()`` then takes them as they are."""
        self._distributed.reduce()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Accepted, for scripts that have it, and not needed: ``step()`` knows that :meth:`synchronize` was called."""
        yield

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale all gradients so that their norm over all ranks' parts is ``max_norm`` at most. All ranks call it.

        It stands where ``torch.nn.utils.clip_grad_norm_`` stands in a serial script: between backward and step.

        Args:
            max_norm: the most.
            norm_type: 1, 2, … or infinity.

        Returns:
            The norm before, the same on all ranks.
        """
        mine = self._distributed
        self.synchronize()
        grads = [part.param.grad for part in mine.slices.parts.values() if part.param.grad is not None]
        norm = total_norm(grads, norm_type, mine.members)
        with torch.no_grad():
            for grad in grads:
                grad.mul_(clip_factor(norm, max_norm).to(grad.dtype))
        return norm

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward adds up whole gradients on this rank, and nothing travels; the next backward sends them.

        It saves messages and costs the memory of all gradients. Without it, each backward sends, and costs none.
        """
        backward = self._distributed.backward
        before, backward.keeping = backward.keeping, True
        try:
            yield
        finally:
            backward.keeping = before

    def abandon_step(self) -> None:
        """End a step that was broken off by an error: what is in flight is waited for, and all gradients dropped."""
        self._distributed.backward.drop()
        self._distributed.synchronized = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accepted, and not needed: any number of passes may come before a step."""
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes}: must be ≥ 1.")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients that no step has used."""
        self._distributed.zero(set_to_none)
        for param in self._distributed.whole.values():
            param.grad = None if set_to_none or param.grad is None else param.grad.zero_()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        raise RuntimeError(_SCALER)

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        flats = self._distributed.backward.flats
        return {param: name for flat in flats for name, param in flat.params.items()}

    def state_dict(self) -> Any:
        """As the wrapped optimizer's on its own, with the parts of all ranks; all ranks call it."""
        return self._distributed.slices.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Take this rank's part of a whole state; each rank does so on its own."""
        self._distributed.slices.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's; all ranks call it. With ``"parameters"`` they must be the sharded model's."""
        mine = self._distributed
        mine.optimizer.add_param_group(param_group)
        number = len(mine.optimizer.param_groups) - 1
        mine.add({f"noname.{number}.{i}": each for i, each in enumerate(mine.optimizer.param_groups[-1]["params"])})


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


__all__ = ["ShardedOptimizer"]
