"""Steps without communication, and then one exchange: what local SGD and DiLoCo have in common.

If ranks talk once in H steps, they send an Hth of the bytes, whatever the model. In between each rank goes its own way,
so it is another training than the one with an average in every step. How far apart they may go depends on H, the
learning rate and the data (Stich 2019, arXiv:1805.09767; Douillard et al. 2023, arXiv:2311.08105).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from workbench.errors import MismatchError
from workbench.job import api
from workbench.job.context import HOLDER, World
from workbench.job.process_sets import ProcessSet
from workbench.job.requests import OrderOfUse

_OWN = ("_inner", "_every", "_set", "_order", "_done", "_world", "_loaded")
_KEY = "exchanges"  # in the state, beside the wrapped optimizer's, which takes no notice of it


class Periodic(torch.optim.Optimizer, ABC):
    """Wrap an optimizer so that ranks step alone, and exchange what they have found every so many steps.

    It shares the wrapped optimizer's ``param_groups`` and ``state``, so learning-rate schedulers see the optimizer that
    they know. The state (momentum, Adam's averages) stays each rank's own, and so do a model's buffers, as BatchNorm's
    statistics.

    Every rank has to make equally many steps. A job may have several of these: every rank uses them in one order. If
    one begins with another, all hear of it at the latest when the second is used. A GradScaler skips the steps of a
    rank with an infinity: use bfloat16.

    Args:
        optimizer: any ``torch.optim`` optimizer but a DistributedOptimizer; used through this object from now on.
        every: H, steps from one exchange to the next.
        process_set: who takes part.

    Raises:
        ValueError: every below 1, or a DistributedOptimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, every: int, process_set: ProcessSet) -> None:
        if every < 1:
            raise ValueError(f"every={every}: give the number of steps from one exchange to the next, at least 1.")
        if hasattr(optimizer, "_distributed"):
            raise ValueError(
                f"{type(self).__name__} takes a plain torch optimizer. A DistributedOptimizer averages gradients in "
                "every step, which this optimizer avoids."
            )
        # Wrapped again, by a notebook's cell that is run again, it is the wrapped one that counts.
        self._inner: torch.optim.Optimizer = optimizer._inner if isinstance(optimizer, Periodic) else optimizer
        self._every = every
        self._set = process_set
        self._order = OrderOfUse()
        self._done = 0
        self._world: World | None = None
        self._loaded: Mapping[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        # Optimizer.__init__ was not called: state, parameter groups and hooks are those of the wrapped optimizer.
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of this rank alone. Each H-th exchanges, and is a collective.

        Returns:
            This rank's loss, if there is a closure.

        Raises:
            CollectiveError: see :meth:`synchronize`.
        """
        self._enter()
        result = self._inner.step(closure)
        self._done += 1
        if self._done >= self._every:
            self.synchronize()
        return result

    def synchronize(self) -> None:
        """Exchange now, if there have been steps since the last time. A collective: before an evaluation, at the end.

        Raises:
            MismatchError: the ranks have made different numbers of steps; the text says who has made how many.
            CollectiveError: the exchange failed. The parameters are what this rank's own steps have made of them.
        """
        self._enter()
        self._agree(
            "steps",
            self._done,
            "have made different numbers of steps since the last exchange",
            "Give every rank equally many batches, as workbench.data.sampler.batches does.",
        )
        if self._done:
            self._exchange()
            self._done = 0

    def trained(self) -> list[torch.Tensor]:
        """The parameters that are exchanged."""
        return [param for group in self._inner.param_groups for param in group["params"] if param.requires_grad]

    def _enter(self) -> None:
        """Before the first step, and in another job, where others begin with these weights, or with a state."""
        world = HOLDER.get().world
        if world is not self._world:
            loaded, self._loaded, self._world = self._loaded, None, world
            self._done = loaded["done"] if loaded else 0
            self._begin(loaded)

    @abstractmethod
    def _begin(self, loaded: Mapping[str, Any] | None) -> None:
        """The next step is the first in this job.

        Args:
            loaded: what :meth:`_more_state` has returned; None: begin anew.
        """

    @abstractmethod
    def _more_state(self) -> dict[str, Any]:
        """What a state has beside the wrapped optimizer's and the number of steps since the last exchange."""

    @abstractmethod
    def _exchange(self) -> None:
        """Bring the ranks together; a collective."""

    @property
    def _name(self) -> str:
        """Of what is exchanged; another object of this job has another."""
        who = type(self).__name__
        return "{} {}.{}".format(who, *self._order.among(who, self._set))

    def _agree(self, what: str, value: int, problem: str, cure: str) -> None:
        """Raise a MismatchError on all ranks if they do not have the same value. A collective."""
        who = type(self).__name__
        mine = np.array([HOLDER.get().world.rank, value], np.int64)
        rows = api.allgather(mine[None], name=f"{self._name} {what}", process_set=self._set)
        if len(set(rows[:, 1].tolist())) > 1:
            each = ", ".join(f"rank {rank}: {value}" for rank, value in rows.tolist())
            raise MismatchError(f"{who}: the ranks {problem} ({each}). {cure}")

    # --- as the wrapped optimizer's -------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's, which can be loaded without this wrapper, and what this rank needs to go on.

        Between two exchanges the ranks' weights differ: save rank 0's after :meth:`synchronize`, or each rank's own.
        """
        state: dict[str, Any] = self._inner.state_dict()
        if self._loaded is not None:
            return {**state, _KEY: self._loaded}
        return state if self._world is None else {**state, _KEY: {"done": self._done, **self._more_state()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`, of this class or the wrapped optimizer's. All ranks load one."""
        self._inner.load_state_dict({name: value for name, value in state_dict.items() if name != _KEY})
        self._loaded = state_dict.get(_KEY)
        self._world = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._inner.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r}, every={self._every})"

    def __reduce__(self) -> Any:
        raise TypeError(f"A {type(self).__name__} cannot be pickled: save its state_dict().")


def refuse_periodic(optimizer: torch.optim.Optimizer) -> None:
    """Raise a ValueError if this one exchanges weights already: then it has no use for averaged gradients."""
    if isinstance(optimizer, Periodic):
        raise ValueError(
            f"{type(optimizer).__name__} exchanges weights after a number of steps, so no gradients are averaged. "
            "Use it without DistributedOptimizer."
        )
