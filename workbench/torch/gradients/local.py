"""Gradients that stay on this rank until ``step()``: of a rank that has nobody to average with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
