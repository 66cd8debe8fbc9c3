"""A naive distributed optimizer, to read and to compare with: it allreduces each gradient at ``step()``.

Use :class:`workbench.torch.DistributedOptimizer` instead. This one begins to communicate when backward has ended, sends
each gradient on its own, and waits for one before it sends the next. It is for dense gradients, and for models in which
every rank uses all parameters that it trains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from workbench.torch.verbs import allreduce_


class NaiveOptimizer:
    """Wrap an optimizer so that every rank steps with the average of all ranks' gradients.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = NaiveOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> hvd.shutdown()
    """

    def __init__(self, optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        self._optimizer = optimizer
        self._named = list(named)

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def step(self) -> Any:
        """Average each ``.grad`` over the ranks, one after the other, and step."""
        for name, param in self._named:
            if param.grad is not None:
                allreduce_(param.grad, name=f"naive.{name}")
        return self._optimizer.step()
