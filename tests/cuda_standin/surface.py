"""What the stand-in has of cupy: every public name, its arguments and constants."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from . import build

Surface = dict[str, Any]


def surface() -> Surface:
    """By dotted name: [name, has it a default?, kind] of each argument; {"value": …} of a constant; else None."""
    found: Surface = {}
    _of_module("cupy", build().cupy, found)
    return found


def _of_module(path: str, module: ModuleType, found: Surface) -> None:
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(value, ModuleType):
            _of_module(f"{path}.{name}", value, found)
        else:
            found[f"{path}.{name}"] = _about(value)
            if inspect.isclass(value) and "cuda_standin" in str(value.__mro__):
                _of_class(f"{path}.{name}", value, found)


def _of_class(path: str, kind: type[Any], found: Surface) -> None:
    ours = [each for each in kind.__mro__ if each.__module__.startswith("cuda_standin")]
    for name in sorted({name for each in ours for name in vars(each) if not name.startswith("_")}):
        value = inspect.getattr_static(kind, name)
        found[f"{path}.{name}"] = _about(value) if callable(value) else None


def _about(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"value": value}
    if not callable(value):
        return None
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return None
    kinds = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.KEYWORD_ONLY: "*"}
    return [[each.name, each.default is not each.empty, kinds.get(each.kind, "")] for each in parameters]
