"""Linear layers whose backward writes a weight's gradient where it is reduced from.

After ``zero_grad()`` autograd makes new memory for each gradient, which is then copied to its bucket. The copy is the
smaller part of the cost: a large tensor's memory comes fresh from the system, page by page, in every step. Only who
computes the gradient can write it elsewhere; for a linear layer that is one matrix product with a place for its result.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workbench.torch.hooks import Hook

_LEAST_BYTES = 1 << 20  # of a weight: below, the copy costs less than a backward written in Python


def write_in_buckets(model: nn.Module, least_bytes: int = _LEAST_BYTES) -> nn.Module:
    """Let the large linear layers of a model write the gradients of their weights directly to the buckets.

    Their results and the model's ``state_dict()`` stay what they are. It helps a DistributedOptimizer whose
    ``zero_grad()`` sets gradients to None. Under autocast and ``torch.compile`` the layers work as before.

    It is not for models whose weights' gradients are asked for with ``torch.autograd.grad``, or that are called within
    ``torch.func``: what autograd gives for such a weight is memory of the bucket, which the next step writes again.

    Args:
        model: is changed, and returned.
        least_bytes: of a weight.

    Example:
        >>> model = write_in_buckets(nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 2)))
        >>> [type(layer).__name__ for layer in model]
        ['LinearInBucket', 'Linear']
    """
    for layer in model.modules():
        if type(layer) is nn.Linear and layer.weight.nbytes >= least_bytes:
            layer.__class__ = LinearInBucket
    return model


class LinearInBucket(nn.Linear):
    """A linear layer; see :func:`write_in_buckets`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type):
            return F.linear(x, self.weight, self.bias)
        result: torch.Tensor = _Linear.apply(x, self.weight, self.bias)
        return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        return (
            grad.matmul(weight) if of_x else None,
            _product(rows.t(), inputs, weight) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _product(left: torch.Tensor, right: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # Who wants to differentiate the gradient once more needs the operation itself.
    place = None if torch.is_grad_enabled() else _place(weight)
    if place is None or place.dtype is not left.dtype or place.dtype is not right.dtype:
        return left.mm(right)
    torch.mm(left, right, out=place)
    return place.detach()  # a tensor that nobody else holds is taken as .grad as it is


def _place(weight: torch.Tensor) -> torch.Tensor | None:
    """Where the gradient is to be, if nothing is there yet in this step."""
    if weight.grad is None:
        for hook in (weight._post_accumulate_grad_hooks or {}).values():
            owner = hook.owner() if isinstance(hook, Hook) else None
            if owner is not None:
                return owner.lend(hook.name)
    return None
