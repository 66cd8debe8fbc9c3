"""The names that a package shows, where it has imported all that it offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def public(names: Mapping[str, Any], *modules: str) -> list[str]:
    """A package's ``__all__``: its names without private ones; of modules these alone.

    Example:
        >>> import json
        >>> public({"dumps": json.dumps, "_need": 1, "decoder": json.decoder, "tool": json}, "decoder")
        ['decoder', 'dumps']
    """
    return sorted(
        name
        for name, value in names.items()
        if not name.startswith("_") and (name in modules or not isinstance(value, ModuleType))
    )


def when_asked(package: str, *modules: str) -> Callable[[str], ModuleType]:
    """A package's ``__getattr__``: these modules of its folder are loaded when somebody asks for them.

    Example:
        >>> when_asked("workbench", "errors")("errors").__name__
        'workbench.errors'
        >>> when_asked("workbench", "errors")("eras")
        Traceback (most recent call last):
        AttributeError: module 'workbench' has no attribute 'eras'
    """

    def load(name: str) -> ModuleType:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return load
