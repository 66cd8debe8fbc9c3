"""What the debugger shows of a variable: a line of text, its type, and what is within it.

They are as DAP has them, the Debug Adapter Protocol: a variable with something within has a number for it, its
``variablesReference``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from itertools import count, islice
from typing import Any

_MOST = 200  # of one container
_LONG = 300  # characters of a value
_LARGE = 1 << 20  # bytes; of such an array no values are shown
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type)


class Names(dict[str, Any]):
    """The variables of a frame."""


class Variables:
    """Those of one stop; a number that an earlier stop has given is not given again.

    Example:
        >>> variables = Variables()
        >>> [each] = variables.of([("losses", [0.5, 0.25])])
        >>> each["name"], each["value"], each["type"]
        ('losses', '[0.5, 0.25]', 'list of 2')
        >>> [each["value"] for each in variables.within(each["variablesReference"])]
        ['0.5', '0.25']
    """

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._numbers = count(1)

    def clear(self) -> None:
        self._values = {}

    def of(self, items: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
        return [self.shown(value) | {"name": name, "evaluateName": name} for name, value in islice(items, _MOST)]

    def shown(self, value: Any) -> dict[str, Any]:
        reference, text = 0 if isinstance(value, _PLAIN) else self.number(value), text_of(value)
        return {"value": text, "type": _kind(value, text), "variablesReference": reference}

    def number(self, value: Any) -> int:
        """For what is within ``value``."""
        number = next(self._numbers)
        self._values[number] = value
        return number

    def within(self, number: int) -> list[dict[str, Any]]:
        """What is within the value that has this number."""
        value = self._values[number]
        found = self.of(_items(value))
        if (more := (len(value) if hasattr(value, "__len__") else 0) - _MOST) > 0 and len(found) == _MOST:
            found.append({"name": f"and {more} more", "value": "", "type": "", "variablesReference": 0})
        return found


def _kind(value: Any, text: str) -> str:
    """The type, by its name. Of what is no number and no string JupyterLab shows nothing else: so it says more."""
    name = type(value).__name__
    if isinstance(value, list | tuple | set | frozenset | Mapping):
        return f"{name} of {len(value)}"
    return f"{name} {text}" if is_array(value) else name


def is_array(value: Any) -> bool:
    """Is it an array, or a tensor of a framework?"""
    return hasattr(value, "dtype") and isinstance(getattr(value, "shape", None), tuple)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Names):
        return value.items()
    if isinstance(value, Mapping):
        return ((text_of(key), each) for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ((str(i), each) for i, each in enumerate(value))
    about = [
        (name, getattr(value, name, None)) for name in ("shape", "dtype", "device", "grad") if hasattr(value, name)
    ]
    own = getattr(value, "__dict__", None) or {}
    return [*about, *((name, each) for name, each in own.items() if not name.startswith("__"))]


def text_of(value: Any) -> str:
    """A value as one line; for an array or a tensor its shape and type come first.

    Example:
        >>> import numpy as np
        >>> text_of(np.ones((2, 2))), text_of("x" * 1000)[:3]
        ('float64 (2, 2): [[1. 1.] [1. 1.]]', "'xx")
    """
    try:
        if not is_array(value):
            short = reprlib.Repr()
            short.maxstring = short.maxother = _LONG
            return " ".join(short.repr(value).split())
        about = f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        if "cpu" not in (device := str(getattr(value, "device", "cpu")).lower()):
            return f"{about} on {device}"  # to read it would wait for what the GPU does, and perhaps for other ranks
        text = " ".join(str(value).split()) if getattr(value, "nbytes", 0) < _LARGE else "…"
        return f"{about}: {text}"[:_LONG]
    except Exception as error:  # noqa: BLE001 - whatever a foreign class does when it is looked at
        return f"({type(error).__name__} when looked at)"
