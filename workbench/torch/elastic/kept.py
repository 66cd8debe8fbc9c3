"""A copy of a state, made into the memory of an older copy: a commit then costs the copy of the bytes and no more.

New memory for each commit costs more than what is written to it: the system hands out and clears its pages.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch


class Kept:
    """A deep copy.

    Args:
        value: dicts, lists and tuples with tensors and anything else in them. Of a DTensor the copy is whole, by a
            collective of the ranks that have its parts.
        spare: an older copy that nobody needs any more. Its tensors are overwritten where they fit.

    Attributes:
        value: the copy.

    Example:
        >>> one, two = Kept({"w": torch.zeros(2), "lr": 1}, None), torch.ones(2)
        >>> before = one.value["w"]
        >>> again = Kept({"w": two, "lr": 2}, one)
        >>> again.value, again.value["w"] is before
        ({'w': tensor([1., 1.]), 'lr': 2}, True)
    """

    def __init__(self, value: Any, spare: Kept | None) -> None:
        old = spare._tensors if spare is not None else {}
        self._tensors: dict[tuple[Any, ...], torch.Tensor] = {}
        sources, copies, memo = [], [], {}
        for path, tensor in _tensors(value, ()):
            if id(tensor) in memo:
                continue
            mine, source = old.get(path), tensor
            if is_sharded(tensor):
                with torch.no_grad():
                    source = tensor.full_tensor()
            if mine is None or _form(mine) != _form(source):
                mine = torch.empty_like(source)
            self._tensors[path] = memo[id(tensor)] = mine
            if source is not tensor:
                mine.copy_(source)  # at once, for it may be large
                continue
            sources.append(tensor)
            copies.append(mine)
        with torch.no_grad():
            for kind in dict.fromkeys((each.dtype, each.device) for each in sources):
                pairs = [(a, b) for a, b in zip(copies, sources, strict=True) if (b.dtype, b.device) == kind]
                torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])
        self.value = copy.deepcopy(value, memo)  # finds the tensors in memo, and copies the rest


def is_sharded(value: Any) -> bool:
    """Is it a DTensor?"""
    return hasattr(value, "full_tensor")


def _tensors(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Ordinary tensors and DTensors with the way to them; deepcopy copies the others."""
    if (type(value) is torch.Tensor or is_sharded(value)) and value.layout is torch.strided and not value.requires_grad:
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors(each, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _tensors(each, (*path, i))


def _form(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
