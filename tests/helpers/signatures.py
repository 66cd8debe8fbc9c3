"""Holds a function's arguments to those of the function of the same name in Horovod."""

from __future__ import annotations

import ast
import inspect
from typing import Any


def calls(text: str) -> list[str]:
    """One text for each of several written below each other."""
    return [ast.unparse(each.value) for each in ast.parse(text).body if isinstance(each, ast.Expr)]


def named(module: Any, path: str) -> Any:
    """What stands behind a dotted name."""
    value = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


def check_call(module: Any, call: str) -> None:
    """Positional or by keyword, a call written for Horovod means the same; ours may take more after it.

    Args:
        module: has the function.
        call: its name and arguments, with defaults: ``allgather(tensor, name=None)``.
    """
    tree: Any = ast.parse(call, mode="eval").body
    mine = list(inspect.signature(named(module, ast.unparse(tree.func))).parameters.values())
    wanted = [(arg.id, inspect.Parameter.empty) for arg in tree.args]
    defaults = {"global_process_set": module.global_process_set, "Average": module.Average}
    defaults["Compression.none"] = module.Compression.none
    for word in tree.keywords:
        text = ast.unparse(word.value)
        wanted.append((word.arg, defaults[text] if text in defaults else ast.literal_eval(text)))
    for parameter, (name, default) in zip(mine, wanted, strict=False):
        assert parameter.name == name
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        # One may be left out here that Horovod needs, such as elastic.run's.
        assert default is inspect.Parameter.empty or parameter.default == default
    assert len(mine) >= len(wanted)
    for more in mine[len(wanted) :]:
        assert more.default is not inspect.Parameter.empty or more.kind is inspect.Parameter.VAR_KEYWORD


__all__ = ["calls", "check_call", "named"]
