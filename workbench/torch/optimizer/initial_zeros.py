"""Gradients before there are any: zeros, as Horovod gives them, which scripts look at, clip and broadcast.

To a step they are no gradients. An optimizer does something with a gradient of zeros (weight decay, momentum), and
nothing with none; so what no rank used stays as it is, as in a serial run. Whoever is about to step calls
:func:`drop_zeros` first. The first backward puts its own gradient in their place.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

Params = Iterable[torch.Tensor]
_MARK = "_workbench_is_no_gradient"


def give_zeros(params: Params) -> None:
    """Give zeros to those that have no gradient.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> give_zeros([weight])
        >>> weight.grad
        tensor([0., 0.])
        >>> drop_zeros([weight])
        >>> print(weight.grad)
        None
    """
    for param in params:
        if param.grad is not None or param.layout is not torch.strided or torch.nn.parameter.is_lazy(param):
            continue
        zeros = torch.zeros_like(param, requires_grad=False)
        setattr(zeros, _MARK, True)
        param.grad = zeros
        if param.requires_grad:
            _MakeWay(param)


def drop_zeros(params: Params) -> None:
    """Set gradients to None that nothing but :func:`give_zeros` has made."""
    for param in params:
        grad = param.grad
        # Whoever set them to zero once more, or multiplied them, has changed nothing.
        if grad is not None and hasattr(grad, _MARK) and (grad._version == 0 or not grad.any()):
            param.grad = None


def give_zeros_until_step(optimizer: torch.optim.Optimizer) -> None:
    """Give zeros to all that a plain optimizer trains; it drops them by itself when it steps.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1)
        >>> for _ in range(2):
        ...     give_zeros_until_step(optimizer)
        >>> handle = optimizer.register_step_pre_hook(lambda *_: print(weight.grad))
        >>> optimizer.step()
        None
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    give_zeros(param for param in params if param.requires_grad)
    for hook in optimizer._optimizer_step_pre_hooks.values():
        if isinstance(hook, DropZeros):
            hook.waiting = True
            return
    optimizer.register_step_pre_hook(DropZeros())


class DropZeros:
    """Drops the zeros at an optimizer's next step. It stays: torch is going through the hooks when it is called."""

    waiting = True

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.waiting:
            self.waiting = False
            drop_zeros(param for group in optimizer.param_groups for param in group["params"])


class InitialZeros:
    """The zeros of a wrapped optimizer.

    Args:
        optimizer: the wrapped one.
        params: by name; may grow.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, params: Mapping[str, torch.Tensor]) -> None:
        self._optimizer = optimizer
        self._params = params
        self._given = False

    def give(self) -> None:
        """Until the next step a trained parameter without a gradient has zeros."""
        self._given = True
        give_zeros(param for param in self._params.values() if param.requires_grad)

    def frozen(self) -> list[torch.Tensor]:
        """Frozen parameters that have a gradient: :meth:`give_to` gives them zeros when it has been cleared."""
        return [param for param in self._all() if not param.requires_grad and param.grad is not None]

    def give_to(self, frozen: list[torch.Tensor]) -> None:
        if frozen:
            self._given = True
            give_zeros(frozen)

    def drop(self) -> None:
        """A step comes: what has zeros only has no gradient."""
        if self._given:
            self._given = False
            drop_zeros({*self._params.values(), *self._all()})

    def _all(self) -> list[torch.Tensor]:
        return [param for group in self._optimizer.param_groups for param in group["params"]]


class _MakeWay:
    """Drops the zeros just before backward stores a gradient: a sparse one added to zeros would become dense."""

    def __init__(self, param: torch.Tensor) -> None:
        self._param = weakref.ref(param)
        self._handle = param.register_hook(self)

    def __call__(self, grad: torch.Tensor) -> None:
        self._handle.remove()
        param = self._param()
        if param is not None:
            drop_zeros([param])
