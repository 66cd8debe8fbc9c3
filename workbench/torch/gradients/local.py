"""Gradients that stay on this rank until ``step()``.

Those of a rank that has nobody to average with, and those of which the largest entries are sent alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.torch.compiled import not_traced
from workbench.torch.gradients.grads import Grads


class LocalGradients:
    """A :class:`~workbench.torch.gradients.source.GradientSource` of which nothing travels while backward runs.

    Args:
        grads: of the optimizer's parameters.
    """

    in_flight = False

    def __init__(self, grads: Grads) -> None:
        self.grads = grads

    def ready(self, name: str, keep: bool) -> None:
        pass

    def reduce(self, names: Sequence[str], unsharded: bool = False) -> None:
        """Nothing is reduced. A sparse gradient becomes dense where the user wants that, as among several ranks."""
        for name in names if self.grads.sparse.dims is None else ():
            self.grads.by_name.dense(name)

    def step(self, update: Callable[[], Any], names: Sequence[str] | None) -> Any:
        if names is not None:
            self.reduce(names)
        with self.grads.steps.step(self.grads.order):
            return update()

    def abandon(self) -> None:
        pass

    def restart(self) -> bool:
        self.grads.restart()
        return False


class TopKGradients(LocalGradients):
    """A :class:`~workbench.torch.gradients.source.GradientSource` for ``Compression.topk``.

    The ranks choose different entries, so that nothing can be added up where it lies: see
    :mod:`workbench.torch.low_communication.topk`.
    """

    @not_traced
    def reduce(self, names: Sequence[str], unsharded: bool = False) -> None:
        grads = self.grads
        with grads.steps.comparing(grads.order):
            gathered = {name: wait() for name, wait in grads.sparse.gather_all(names).items()}
        for name, grad in gathered.items():
            grads.params[name].grad = grad
