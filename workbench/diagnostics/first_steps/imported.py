"""Calls a function when a module has been imported, and with each call of something in it; imports none itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Watch = Callable[[ModuleType], None]


class WhenImported(MetaPathFinder):
    """Finds what the other finders find.

    Args:
        watches: module → what is called with it, once, right after its code has run.
    """

    def __init__(self, watches: Mapping[str, Watch]) -> None:
        self._watches, self._asking = dict(watches), set[str]()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec, with a loader that calls the watch."""
        if fullname not in self._watches or fullname in self._asking:
            return None
        self._asking.add(fullname)  # the other finders are asked through this one
        try:
            spec = find_spec(fullname)
        finally:
            self._asking.discard(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            if watch := self._watches.pop(fullname, None):
                watch(module)

        loader.exec_module = exec_module
        return spec


def when_imported(watches: Mapping[str, Watch]) -> None:
    """Call each watch when its module has been imported."""
    sys.meta_path.insert(0, WhenImported(watches))


def before(owner: Any, name: str, look: Callable[..., object]) -> None:
    """From now on, each call of a function or method is first one of ``look``, with the same arguments."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def called(*args: Any, **options: Any) -> Any:
        look(*args, **options)
        return plain(*args, **options)

    setattr(owner, name, called)


def when_made(kind: Any, look: Callable[[Any], object]) -> None:
    """From now on, call ``look`` with each object of a class, or of one below it, when that class has made it."""
    plain = kind.__init__

    @functools.wraps(plain)
    def init(made: Any, *args: Any, **options: Any) -> None:
        plain(made, *args, **options)
        look(made)

    kind.__init__ = init
