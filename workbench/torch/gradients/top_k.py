"""Gradients of which the largest entries are sent alone: they are gathered, in ``step()``."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.torch.compiled import not_traced
from workbench.torch.gradients.local import LocalGradients


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
