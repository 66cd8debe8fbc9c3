"""What a function returns, as its author meant it: numbers and lists, in whatever type numpy or torch give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping, ValuesView
from functools import update_wrapper
from typing import Any

import numpy as np

_FRAMEWORKS = ("torch", "tensorflow", "jax", "jaxlib")
_NARROW = ("float16", "bfloat16", "float32")
_LAZY = (Iterator, range, KeysView, ValuesView, map, zip, filter)


def from_torch(value: Any) -> Any:
    """A tensor of torch, TensorFlow or JAX as an array of numpy; anything else as it is."""
    if type(value).__module__.partition(".")[0] not in _FRAMEWORKS or not hasattr(value, "dtype"):
        return value  # a proxy is not asked for attributes: that would be a message
    if hasattr(value, "full_tensor"):
        raise TypeError("A DTensor is a part of a tensor on each rank: full_tensor(), on all ranks, makes it whole.")
    value = value.detach().cpu() if hasattr(value, "detach") else value
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def plain(value: Any) -> Any:
    """Arrays and what is iterated once as lists, scalars as Python's numbers; lists, tuples and dicts all through.

    Example:
        >>> plain(np.float64(0.5)), plain((np.array([1, 2]), np.array(3))), plain(i * i for i in range(3))
        (0.5, ([1, 2], 3), [0, 1, 4])
    """
    value = from_torch(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, _LAZY):
        value = list(value)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    return value


class PlainResults:
    """A function whose results are :func:`plain`.

    Args:
        function: a learner's.

    Attributes:
        narrow: the name of a type of few digits that a result had; empty if none had.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function, self.narrow = function, ""
        self.__globals__ = getattr(function, "__globals__", {})

    def __call__(self, *args: Any, **options: Any) -> Any:
        found = self._function(*args, **options)
        kind = str(getattr(found, "dtype", "")).rpartition(".")[2]
        self.narrow = kind if kind in _NARROW else self.narrow
        return plain(found)
