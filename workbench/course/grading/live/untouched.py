"""Has anything been changed that decides about a mark? Functions, classes and methods are compared by identity.

A learner's function that runs beside the judge can assign to the judge's names. Then the judge's next word is worth
nothing, so this looks before each of them.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterator
from typing import Any

_DECIDE = ("workbench", "numpy", "operator", "functools", "math", "ast", "inspect", "torch.nn.functional")
_DEEP = ("workbench", "numpy.testing", "numpy._core", "numpy.core")


class Snapshot:
    """What modules and classes hold now.

    Args:
        extra: objects whose attributes must stay as well, such as a task.

    Example:
        >>> import numpy as np
        >>> before, kept = Snapshot(), np.allclose
        >>> np.allclose = lambda *args: True
        >>> before.changed(), setattr(np, "allclose", kept), before.changed()
        ('numpy.allclose', None, '')
    """

    def __init__(self, *extra: object) -> None:
        self._extra = extra
        self._modules = {name: module for name, module in sys.modules.items() if _decides(name)}
        self._before = dict(self._now())

    def changed(self) -> str:
        """The first name that stands for something else than before; empty if none does."""
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                return f"sys.modules[{name!r}]"
        now = dict(self._now())
        return next((name for name, what in self._before.items() if now.get(name) != what), "")

    def _now(self) -> Iterator[tuple[str, tuple[int, int]]]:
        yield from _held("builtins", vars(builtins))
        for name, module in self._modules.items():
            held = dict(vars(module))
            yield from _held(name, held)
            if name.startswith(_DEEP):
                for key, value in held.items():
                    if isinstance(value, type) and value.__module__ == name:
                        yield from _held(f"{name}.{key}", dict(vars(value)))
        for one in self._extra:
            for key, value in vars(one).items():
                yield f"{type(one).__name__}.{key}", (id(value), 0)
                for part in value if isinstance(value, (list, tuple)) else ():
                    yield f"{type(one).__name__}.{key}.{id(part)}", (_code(part), 0)


def _decides(name: str) -> bool:
    return name.startswith(tuple(f"{one}." for one in _DECIDE)) or name in _DECIDE


def _held(owner: str, names: dict[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    for key, value in names.items():
        if callable(value) or isinstance(value, (types.ModuleType, staticmethod, classmethod, property)):
            yield f"{owner}.{key}", (id(value), _code(value))


def _code(value: Any) -> int:
    function = getattr(value, "__func__", value)
    return id(getattr(function, "__code__", None)) ^ id(getattr(function, "__defaults__", None))
