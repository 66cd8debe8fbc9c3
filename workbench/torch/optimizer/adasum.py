"""A step with Adasum: every rank steps with its own gradients, and the *changes* are combined.

Adasum looks at the angle between what the ranks want. For optimizers with state that is the change of the weights,
not the gradient; so the step is taken locally, its change is reduced, and the weights are set to where they
were plus the reduced change (Maleki et al. 2020, arXiv:2006.02924).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from workbench.api import Adasum
from workbench.core.messages import Kind
from workbench.process_sets import ProcessSet
from workbench.requests import OrderOfUse
from workbench.torch.ops import begin
from workbench.training.calls import Call
from workbench.training.compression import Compressor


def adasum_step(
    optimizer: torch.optim.Optimizer,
    params: dict[str, torch.nn.Parameter],
    compression: Compressor,
    process_set: ProcessSet,
    order: OrderOfUse,
    closure: Callable[[], Any] | None,
) -> Any:
    """Step locally, combine the changes, apply them.

    Args:
        optimizer: the wrapped one.
        params: by name; those that are trained.
        compression: of the changes on the wire.
        process_set: a power of two ranks.
        order: tells the optimizer from others.
        closure: the local optimizer's.

    Returns:
        The closure's result.
    """
    start = {name: param.detach().clone() for name, param in params.items()}
    result = optimizer.step(closure)
    handles = {}
    with torch.no_grad():
        for name, param in params.items():
            change, ctx = compression.compress(param - start[name])
            change = change.contiguous()
            call = Call(Kind.ALLREDUCE, name, Adasum, process_set=process_set, **order.fields(name, process_set))
            handles[name] = change, ctx, begin(call, [change], fresh=False)
        for name, (change, ctx, handle) in handles.items():
            handle.wait()
            params[name].copy_(start[name] + compression.decompress(change, ctx))
    return result
