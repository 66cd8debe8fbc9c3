"""A step with Adasum: every rank steps with its own gradients, and the *changes* are combined.

Adasum looks at the angle between what the ranks want. For optimizers with state that is the change of the weights,
not the gradient; so the step is taken locally, its change is reduced, and the weights are set to where they
were plus the reduced change (Maleki et al. 2020, arXiv:2006.02924).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from workbench.core.messages import Kind
from workbench.job.api import Adasum
from workbench.job.calls import Call
from workbench.torch.gradients.dense import wait_for_all
from workbench.torch.gradients.local import LocalGradients
from workbench.torch.ops import begin


class AdasumGradients(LocalGradients):
    """A :class:`~workbench.torch.gradients.source.GradientSource`: gradients stay here, changes of the weights travel.

    Among a power of two ranks.
    """

    def step(self, update: Callable[[], Any], names: Sequence[str] | None) -> Any:
        """Step locally, combine the changes, apply them.

        Raises:
            CollectiveError: a reduction failed; no parameter has changed.
        """
        assert names is not None, "Adasum's changes are those of a whole step"
        self.reduce(names)
        grads = self.grads
        params = {name: grads.params[name] for name in names}
        start = {name: param.detach().clone() for name, param in params.items()}
        try:
            result = update()
            with grads.steps.comparing(grads.order):
                changes = self._combined(start, params)
        except BaseException:
            with torch.no_grad():
                for name, param in params.items():
                    param.copy_(start[name])
            raise
        with torch.no_grad(), grads.steps.step():
            for name, (change, ctx) in changes.items():
                params[name].copy_(start[name] + grads.compression.decompress(change, ctx))
        return result

    @torch.no_grad()
    def _combined(
        self, start: dict[str, torch.Tensor], params: dict[str, torch.nn.Parameter]
    ) -> dict[str, tuple[torch.Tensor, Any]]:
        """All ranks' changes since the start, as they were sent, and what decompresses them."""
        changes, handles = {}, []
        where = self.grads.process_set
        for name, param in params.items():
            change, ctx = self.grads.compression.compress(param - start[name])
            changes[name] = change.contiguous(), ctx
            about = self.grads.order.about(name, where)
            call = Call(Kind.ALLREDUCE, name, Adasum, process_set=where, about=about)
            handles += begin(call, [changes[name][0]], fresh=False).members
        wait_for_all(handles)
        return changes
