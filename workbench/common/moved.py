"""Modules at their old names, for one release: importing one works, and using it warns."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Moved(ModuleType):
    """Stands for a module that is elsewhere now."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(old, f"Moved to {new}.")
        self.__spec__, self._new = ModuleSpec(old, None), new

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(import_module(self._new), name)
        warnings.warn(f"{self.__name__} is {self._new} now.", DeprecationWarning, stacklevel=2)
        return found


def moved(old: str, new: str) -> None:
    """Let a module be found under its old name, too. To be called by the package that it was in.

    Example:
        >>> moved("workbench.wrong", "workbench.errors")
        >>> from workbench.wrong import LaunchError
        Traceback (most recent call last):
        DeprecationWarning: workbench.wrong is workbench.errors now.
    """
    package, _, name = old.rpartition(".")
    sys.modules[old] = Moved(old, new)
    if package in sys.modules:
        setattr(sys.modules[package], name, sys.modules[old])


__all__ = ["moved"]
