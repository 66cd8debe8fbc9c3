"""Local SGD: every H steps the ranks' parameters are averaged (Stich 2019, arXiv:1805.09767)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.torch.low_communication.periodic import Periodic
from workbench.torch.verbs import grouped_allreduce_async


class LocalSGD(Periodic):
    """Step alone, and average the parameters every H steps.

    With ``every=1`` and SGD it is the training that averages gradients: the average of w - lr g is w - lr mean(g).
    Sends the bytes of all parameters, and of no gradient, once in H steps. What both wrappers have in common is said of
    :class:`~workbench.torch.low_communication.periodic.Periodic`.

    Args:
        optimizer: any ``torch.optim`` optimizer but a DistributedOptimizer.
        every: H.
        process_set: the ranks that average.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        >>> optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), every=8)
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(1, 2)).sum().backward()
        ...     optimizer.step()  # steps 8 and 16 average
        >>> optimizer.synchronize()  # and the last four
        >>> hvd.shutdown()
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, every: int = 16, process_set: ProcessSet = global_process_set
    ) -> None:
        super().__init__(optimizer, every, process_set)

    def _begin(self, loaded: Mapping[str, Any] | None) -> None:
        """Whatever the ranks begin with, the first average makes it one."""

    def _more_state(self) -> dict[str, Any]:
        return {}

    def _exchange(self) -> None:
        params = self.trained()
        self._agree(
            "parameters",
            len(params),
            "average unlike numbers of parameters",
            "Freeze the same parameters on every rank.",
        )
        mine = [param.detach().contiguous() for param in params]
        # Into new memory: if it fails, the parameters are still this rank's own.
        averages = grouped_allreduce_async(mine, name=self._name, process_set=self._set).wait()
        with torch.no_grad():
            for param, average in zip(params, averages, strict=True):
                param.copy_(average)
