"""``DistributedOptimizer(..., sharded="gradients")`` and ``sharded="parameters"``: ZeRO 2 and 3.

A step: wait for the gradients (``backward.py``), ask which parameters any rank has a gradient of, let the wrapped
optimizer step on this rank's shards, and in stage 2 bring every rank's shards to all (``stage2.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from workbench.job import api
from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.torch.compression import Compression
from workbench.torch.sharded.flat_parameter import GRADIENTS, PARAMETERS, Members
from workbench.torch.sharded.stage1 import check_elementwise
from workbench.torch.sharded.stage2 import Stage2Gradients
from workbench.torch.wrapping import SHARDED_SCALER, Named, Wrapping, by_name, check_passes, loss_of_all
from workbench.training.compression import Compressor

_STAGES = (False, True, "optimizer", GRADIENTS, PARAMETERS)


class ShardedOptimizer(Wrapping):
    """Wrap an optimizer so that each rank keeps and updates its part of the parameters.

    ``hvd.DistributedOptimizer(..., sharded="gradients")`` or ``"parameters"`` makes it. All ranks make it alike.

    ``"gradients"``: a bucket of gradients is reduce-scattered when its last one is ready; each rank keeps its part and
    frees the rest. After the step the ranks gather each other's parts of the parameters.

    ``"parameters"``: ``hvd.shard_parameters(model)`` comes before. Parameters are gathered for each layer's forward and
    backward pass.

    What differs from other DistributedOptimizers. The model's ``.grad`` is None after backward: :meth:`clip_grad_norm_`
    clips. Gradients are used up by ``step()``, so ``zero_grad()`` may be left out. Any number of backward passes may
    come before a step, equally many on all ranks; each is sent, unless within :meth:`no_sync`. ``state_dict()`` is
    whole, and a collective; among another number of ranks it goes on. All ranks call ``load_state_dict()``.

    Args:
        optimizer: SGD, Adam or another of ``torch.optim`` that treats each element by itself.
        named_parameters: ``model.named_parameters()``.
        backward_passes_per_step: accepted, and not needed.
        process_set: the ranks that share, with ``"gradients"``; else ``shard_parameters`` has been told.
        sharded: ``"gradients"`` or ``"parameters"``.
        compression, op, gradient_predivide_factor, num_groups, groups, sparse_as_dense, overlap_forward, plan: refused,
            but for their defaults.

    Raises:
        ValueError: what does not go with it, by name.
        MismatchError: the ranks have different parameters.
    """

    _distributed: Stage2Gradients

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
        overlap_forward: bool | None = None,
        plan: Any = None,
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
            "overlap_forward": bool(overlap_forward),
            "plan": plan is not None,
        }
        if wrong := [name for name, is_wrong in refused.items() if is_wrong]:
            raise ValueError(f"sharded={sharded!r} does not go with {', '.join(wrong)}. Leave one of them out.")
        check_passes(backward_passes_per_step)
        check_elementwise(optimizer, f"sharded={sharded!r}", "updates slices of parameters, and {} may need whole ones")
        self._distributed = Stage2Gradients(optimizer, by_name(optimizer, named_parameters), str(sharded), process_set)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for this rank's part of the gradients, update its part of the parameters.

        Args:
            closure: evaluates the model again and returns the loss, of which all ranks get the mean.

        Raises:
            CollectiveError: a reduction failed, or a rank has left the step. If some ranks have updated their parts by
                then, the next step says so.
            MismatchError: the ranks have made unequally many backward passes, or a step before was broken off.
            RuntimeError: another DistributedOptimizer has taken the parameters over, the job has ended, or a backward
                pass was broken off.
        """
        mine, loss = self._distributed, None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            if mine.members.size > 1:
                loss = loss_of_all(loss, f"closure of {mine.name}", mine.members.process_set)
        mine.step(mine.optimizer.step)
        return loss

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
        if not mine.synchronized or mine.in_flight:
            self.synchronize()
        grads = [part.param.grad for part in mine.state.shards.values() if part.param.grad is not None]
        norm = total_norm(grads, norm_type, mine.members, mine.name)
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
        self._distributed.abandon()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accepted, and not needed: any number of passes may come before a step."""
        check_passes(passes)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients that no step has used."""
        self._distributed.zero(set_to_none)
        for param in self._distributed.replicated.values():
            param.grad = None if set_to_none or param.grad is None else param.grad.zero_()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        raise RuntimeError(SHARDED_SCALER.format("sharded"))

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        flats = self._distributed.backward.flats
        return {param: name for flat in flats for name, param in flat.params.items()}

    def state_dict(self) -> Any:
        """As the wrapped optimizer's on its own, with the parts of all ranks; all ranks call it."""
        return self._distributed.state.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Take this rank's part of a whole state; each rank does so on its own."""
        self._distributed.state.load_state_dict(state_dict)
        self._distributed.loaded()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's; all ranks call it. With ``"parameters"`` they must be the sharded model's."""
        mine = self._distributed
        mine.optimizer.add_param_group(param_group)
        number = len(mine.optimizer.param_groups) - 1
        mine.add({f"noname.{number}.{i}": each for i, each in enumerate(mine.optimizer.param_groups[-1]["params"])})


def total_norm(grads: Sequence[torch.Tensor], norm_type: float, members: Members, name: str = "") -> torch.Tensor:
    """Of all ranks' gradients together, in float64, the same on all of them.

    Args:
        grads: this rank's; there may be none.
        norm_type: p, of the p-th root of the sum of |g|ᵖ; infinity: the largest |g|.
        members: who has the other parts.
        name: of what these gradients are, the same on all ranks.

    Example:
        >>> from workbench.job.process_sets import global_process_set
        >>> total_norm([torch.tensor([3.0]), torch.tensor([-4.0])], 2, Members(0, 1, global_process_set)).item()
        5.0
    """
    largest = math.isinf(norm_type)
    norms = [float(torch.linalg.vector_norm(grad, norm_type, dtype=torch.float64)) for grad in grads]
    here = max(norms, default=0.0) if largest else sum(norm**norm_type for norm in norms)
    if members.size > 1:
        op, where = (api.Max if largest else api.Sum), members.process_set
        here = float(api.allreduce(np.array([here]), f"norm of gradients {name}", op=op, process_set=where)[0])
    return torch.tensor(here if largest else here ** (1 / norm_type), dtype=torch.float64)


def clip_factor(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """By what gradients are multiplied: as torch.nn.utils.clip_grad_norm_ has it.

    Example:
        >>> clip_factor(torch.tensor(2.0), 5.0).item()
        1.0
    """
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)
