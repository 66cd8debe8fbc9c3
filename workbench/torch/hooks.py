"""Hooks on parameters: backward has finished a gradient. A newer optimizer's hooks replace those of an older one."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch

from workbench.torch.compiled import not_traced

REPLACED = (
    "Another DistributedOptimizer was made for the same parameters after this one, and has taken over from it. Use the "
    "new one."
)
_NOT_HERE = (
    "optimizer.step(): backward() has run, but none of the {} parameters of this DistributedOptimizer has got a "
    "gradient on this rank. They may be the model's no longer: model.load_state_dict(..., assign=True) puts others in "
    "their place. Then make the optimizer again, of model.parameters()."
)


class HookOwner(Protocol):
    """Of hooks.

    Attributes:
        arrivals: of gradients.
    """

    arrivals: Arrivals

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
    """

    def __init__(self, owner: HookOwner, name: str, param: torch.nn.Parameter) -> None:
        self.owner = weakref.ref(owner)
        self.name = name
        self._param = weakref.ref(param)
        self._handle = param.register_post_accumulate_grad_hook(self)

    @not_traced
    def __call__(self, param: torch.Tensor) -> None:
        owner = self.owner()
        if owner is not None:
            owner.arrivals.note()
            owner.ready(self.name)

    def remove(self) -> None:
        self._handle.remove()


class Arrivals:
    """Does backward bring gradients to an optimizer's parameters?"""

    def __init__(self) -> None:
        self._came = False
        self._pass = _next_pass()
        self._missed = 0

    def note(self) -> None:
        self._came, self._pass = True, torch._C._current_graph_task_id()

    def check(self, grads: Mapping[torch.nn.Parameter, torch.Tensor | None]) -> None:
        """A step comes. Warn if backward has run, has brought none of these gradients, and no module has a parameter.

        It may have run for another model, on a rank that has no data for this one.
        """
        came, self._came = self._came, False
        if came:
            return
        before, self._pass = self._pass, _next_pass()
        if self._pass == before + 1 or any(grad is not None and grad.any() for grad in grads.values()):
            return
        self._missed += 1
        # To look at all that Python has takes milliseconds: it is done ever more seldom.
        if self._missed.bit_count() == 1 and grads and not _in_modules(grads):
            warnings.warn(_NOT_HERE.format(len(grads)), stacklevel=2)


def _in_modules(params: Iterable[torch.nn.Parameter]) -> bool:
    """Has a module one of these?"""
    of_them = {id(each): each for each in gc.get_referrers(*params) if isinstance(each, dict)}
    owners = (each for each in gc.get_referrers(*of_them.values()) if isinstance(each, (dict, torch.nn.Module)))
    return any(id((each if isinstance(each, dict) else vars(each)).get("_parameters")) in of_them for each in owners)


def _next_pass() -> int:
    """The number of a backward pass that begins now: torch counts them."""
    found: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        probe = torch.zeros((), device="cpu", requires_grad=True)
        probe.register_hook(lambda _: found.append(torch._C._current_graph_task_id()))
        (probe * 1).backward()
    return found[0]


def take_over(param: torch.nn.Parameter) -> HookOwner | None:
    """If an optimizer has a hook on this parameter, it gives way to the one that will; which it was."""
    owner = None
    for old in list((param._post_accumulate_grad_hooks or {}).values()):
        if isinstance(old, Hook):
            old.remove()
            if (owner := old.owner()) is not None:
                owner.give_way()
    return owner
