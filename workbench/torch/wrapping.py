"""A torch optimizer inside one of ours, which looks like it; and the names of its parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet
from workbench.torch.verbs import allreduce_async

Named = Iterable[tuple[str, torch.nn.Parameter]]
SHARDED_SCALER = (
    "GradScaler would look at a part of the gradients only, and the ranks would disagree about infinities. "
    "Use bfloat16, which needs no GradScaler, or leave {} out."
)


class Wrapping(torch.optim.Optimizer):
    """Has the wrapped optimizer's state, groups, hooks and class, so schedulers see the optimizer that they know.

    ``Optimizer.__init__`` is not called. What ours adds stands in ``_distributed``, and the wrapped one in
    ``_distributed.optimizer``.
    """

    _distributed: Any

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance(optimizer, torch.optim.SGD) stays true
        return type(self.__dict__["_distributed"].optimizer) if "_distributed" in self.__dict__ else type(self)

    def __getattr__(self, name: str) -> Any:
        if name == "_distributed":
            raise AttributeError(name)
        return getattr(self._distributed.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # ``step`` stays here, for learning-rate schedulers replace it by one that counts.
        if name in ("_distributed", "step"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._distributed.optimizer, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            object.__delattr__(self, name)
        else:
            delattr(self._distributed.optimizer, name)

    def __repr__(self) -> str:
        return f"Distributed{self._distributed.optimizer!r}"

    def __reduce__(self) -> Any:
        raise TypeError("A DistributedOptimizer cannot be pickled: save its state_dict().")


def check_passes(passes: int) -> None:
    """Of ``backward_passes_per_step``: there is one at least."""
    if passes < 1:
        raise ValueError(f"backward_passes_per_step={passes}: must be ≥ 1.")


def loss_of_all(loss: Any, name: str, process_set: ProcessSet, op: ReduceOp = Average) -> Any:
    """What a closure has returned, reduced as the gradients are; anything but a number as it is.

    An optimizer that decides by the loss, as LBFGS does, then decides alike on all ranks.
    """
    if not isinstance(loss, (float, torch.Tensor)):
        return loss
    here = torch.as_tensor(loss).detach().contiguous()
    reduced = allreduce_async(here, name=name, op=op, process_set=process_set).wait()
    return reduced.item() if isinstance(loss, float) else reduced


def by_name(optimizer: torch.optim.Optimizer, named: Named | None) -> dict[str, torch.nn.Parameter]:
    """The optimizer's parameters by name, in its order.

    Args:
        optimizer: any.
        named: ``model.named_parameters()``; without it they are numbered.

    Raises:
        ValueError: names missing, twice, or not strings.
    """
    params = [(g, i, p) for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])]
    if named is None:
        return {f"noname.{g}.{i}": param for g, i, param in params}
    pairs = list(named)
    if any(not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}.")
    given = {param: name for name, param in reversed(pairs)}
    unnamed = sum(param not in given for _, _, param in params)
    if unnamed:
        raise ValueError(
            f"named_parameters was specified, but {unnamed} of the optimizer's parameters have no name in it."
        )
    return {given[param]: param for _, _, param in params}
