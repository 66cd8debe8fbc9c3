"""A step with Adasum: every rank steps with its own gradients, and the *changes* are combined.

Adasum looks at the angle between what the ranks want. For optimizers with state that is the change of the weights,
not the gradient; so the step is taken locally, its change is reduced, and the weights are set to where they
were plus the reduced change (Maleki et al. 2020, arXiv:2006.02924).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from workbench.core.handle import Handle
from workbench.core.messages import Kind
from workbench.job.api import Adasum
from workbench.job.process_sets import ProcessSet
from workbench.job.requests import OrderOfUse
from workbench.torch.ops import begin
from workbench.training.calls import Call
from workbench.training.compression import Compressor
from workbench.training.step_count import StepCount
from workbench.training.step_reducer import wait_for_all


def adasum_step(
    optimizer: torch.optim.Optimizer,
    params: dict[str, torch.nn.Parameter],
    compression: Compressor,
    process_set: ProcessSet,
    order: OrderOfUse,
    steps: StepCount,
    closure: Callable[[], Any] | None,
) -> Any:
    """Step locally, combine the changes, apply them.

    Args:
        optimizer: the wrapped one.
        params: by name; those that are trained.
        compression: of the changes on the wire.
        process_set: a power of two ranks.
        order: tells the optimizer from others.
        steps: how many there were.
        closure: the local optimizer's.

    Returns:
        The closure's result.

    Raises:
        CollectiveError: a reduction failed; no parameter has changed.
    """
    start = {name: param.detach().clone() for name, param in params.items()}
    try:
        result = optimizer.step(closure)
        with steps.comparing(order):
            changes = _combined(start, params, compression, process_set, order)
    except BaseException:
        with torch.no_grad():
            for name, param in params.items():
                param.copy_(start[name])
        raise
    with torch.no_grad(), steps.step():
        for name, (change, ctx) in changes.items():
            params[name].copy_(start[name] + compression.decompress(change, ctx))
    return result


@torch.no_grad()
def _combined(
    start: dict[str, torch.Tensor],
    params: dict[str, torch.nn.Parameter],
    compression: Compressor,
    process_set: ProcessSet,
    order: OrderOfUse,
) -> dict[str, tuple[torch.Tensor, Any]]:
    """All ranks' changes since the start, as they were sent, and what decompresses them."""
    changes, handles = {}, list[Handle]()
    for name, param in params.items():
        change, ctx = compression.compress(param - start[name])
        changes[name] = change.contiguous(), ctx
        call = Call(Kind.ALLREDUCE, name, Adasum, process_set=process_set, user=order.user(name, process_set))
        handles += begin(call, [changes[name][0]], fresh=False).members
    wait_for_all(handles)
    return changes
