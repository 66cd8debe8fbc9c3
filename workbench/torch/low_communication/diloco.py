"""DiLoCo: what H steps have changed is a gradient, for an outer optimizer (Douillard et al. 2023, arXiv:2311.08105)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.torch.low_communication.periodic import Periodic
from workbench.torch.verbs import grouped_allreduce_async_


class DiLoCo(Periodic):
    """Step alone; every H steps an outer SGD with Nesterov's momentum steps with the average of the changes.

    ::

        change  = average over the ranks of (start - parameters)     # the outer gradient
        start   = Nesterov(start, change)
        parameters = start                                           # the same on all ranks

    With outer_lr 1 and momentum 0, start is the average of the parameters: local SGD. Sends the bytes of all parameters
    once in H steps; holds two more copies of them, start and the outer momentum. What both wrappers have in common is
    said of :class:`~workbench.torch.low_communication.periodic.Periodic`.

    The ranks must begin with the same weights. After a change of membership the outer momentum begins anew, unless all
    ranks load a state, as ``hvd.elastic.TorchState`` makes them.

    Args:
        optimizer: the inner one; AdamW in the paper.
        outer_lr: the learning rate of the outer one; the default is the paper's.
        momentum: of the outer one; the default is the paper's.
        every: H; 500 in the paper.
        process_set: the ranks that take part.

    Raises:
        ValueError: outer_lr not positive, or momentum not in [0, 1); in an exchange: parameters have been frozen or
            unfrozen since the first step.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> optimizer = hvd.DiLoCo(torch.optim.AdamW(model.parameters()), every=10)
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(1, 2)).sum().backward()
        ...     optimizer.step()  # steps 10 and 20 exchange
        >>> hvd.shutdown()
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        outer_lr: float = 0.7,
        momentum: float = 0.9,
        every: int = 100,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(optimizer, every, process_set)
        if outer_lr <= 0 or not 0 <= momentum < 1:
            raise ValueError(f"outer_lr={outer_lr}, momentum={momentum}: give outer_lr > 0 and 0 ≤ momentum < 1.")
        self._outer_options: dict[str, Any] = {"lr": outer_lr, "momentum": momentum, "nesterov": momentum > 0}
        self._params: list[torch.Tensor] = []
        self._starts: list[torch.Tensor] = []
        self._outer = torch.optim.SGD([torch.empty(0)], **self._outer_options)

    def _begin(self, loaded: Mapping[str, Any] | None) -> None:
        self._params = self.trained()
        self._starts = [param.detach().clone() for param in self._params]
        self._outer = torch.optim.SGD(self._starts, **self._outer_options)
        if loaded is not None:
            self._outer.load_state_dict(loaded["outer"])
            for start, saved in zip(self._starts, loaded["starts"], strict=True):
                start.copy_(saved)
        momenta = [one.get("momentum_buffer") for one in self._outer.state.values()]
        self._agree(
            "start",
            _checksum([*self._starts, *(one for one in momenta if one is not None)]),
            "begin with different weights, or another outer momentum",
            "Call hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the first step. If there are "
            "several DiLoCo, use them in the same order on every rank.",
        )

    def _exchange(self) -> None:
        self._check_same_parameters()
        pairs = list(zip(self._starts, self._params, strict=True))
        with torch.no_grad():
            changes = [(start - param).contiguous() for start, param in pairs]
            grouped_allreduce_async_(changes, name=self._name, process_set=self._set).wait()
            for start, change in zip(self._starts, changes, strict=True):
                start.grad = change
            self._outer.step()
            self._outer.zero_grad()
            for start, param in pairs:
                param.copy_(start)

    def _check_same_parameters(self) -> None:
        """What was frozen until now has no start; what is frozen now, the outer momentum would move. A collective."""
        others = {id(param) for param in self._params} ^ {id(param) for param in self.trained()}
        cure = (
            "Its outer step needs the same parameters as at its start: freeze parameters before the first step, or "
            "call synchronize() and make another DiLoCo."
        )
        self._agree("parameters", len(others), "have frozen or unfrozen unlike numbers of parameters", cure)
        if others:
            raise ValueError(f"DiLoCo: {len(others)} parameters were frozen, unfrozen or added since it began. {cure}")

    def _more_state(self) -> dict[str, Any]:
        return {"outer": self._outer.state_dict(), "starts": list(self._starts)}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the outer momentum is that of the parameters which it began with."""
        raise ValueError(
            "DiLoCo takes no further parameters. Call synchronize(), and make another one with all of them."
        )


def _checksum(tensors: Sequence[torch.Tensor]) -> int:
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return found
