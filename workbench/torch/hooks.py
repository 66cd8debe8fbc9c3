"""Hooks on parameters: backward has finished a gradient. A newer optimizer's hooks replace those of an older one."""

from __future__ import annotations

import weakref
from typing import Protocol

import torch

from workbench.torch.compiled import not_traced


class HookOwner(Protocol):
    """Of hooks."""

    def ready(self, name: str) -> None:
        """Backward has finished a gradient."""

    def lend(self, name: str) -> torch.Tensor | None:
        """A place for backward to write a gradient to, if there is one."""

    def give_way(self) -> None:
        """Another optimizer takes the parameters over."""


class Hook:
    """On a parameter: when backward has finished its gradient, its owner is called, if there still is one.

    Attributes:
        owner: a weak reference, so that a model and its optimizer are freed as soon as nobody has them.
        name: of the parameter.
        in_common: the parameter's memory is that of all ranks.
    """

    in_common = False

    def __init__(self, owner: HookOwner, name: str, param: torch.nn.Parameter) -> None:
        self.owner = weakref.ref(owner)
        self.name = name
        self._param = weakref.ref(param)
        self._handle = param.register_post_accumulate_grad_hook(self)

    @not_traced
    def __call__(self, param: torch.Tensor) -> None:
        owner = self.owner()
        if owner is not None:
            owner.ready(self.name)

    def remove(self) -> None:
        """Remove the hook; a parameter in memory that ranks share is copied to memory of this rank alone."""
        self._handle.remove()
        param = self._param()
        if self.in_common and param is not None:
            self.in_common, param.data = False, param.data.clone()


def take_over(param: torch.nn.Parameter) -> HookOwner | None:
    """If an optimizer has a hook on this parameter, it gives way to the one that will; which it was."""
    owner = None
    for old in list((param._post_accumulate_grad_hooks or {}).values()):
        if isinstance(old, Hook):
            old.remove()
            if (owner := old.owner()) is not None:
                owner.give_way()
    return owner


__all__ = ["Hook", "take_over"]
