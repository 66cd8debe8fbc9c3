"""The loops around a place of a script, also out of the functions that they are in."""

from __future__ import annotations

import libcst as cst

from workbench.convert.origins import assignments, bound, parameters
from workbench.convert.script import Script, last

_PROGRESS = ("tqdm", "trange", "track", "progress_bar")


def bare(script: Script, node: cst.BaseExpression) -> cst.BaseExpression:
    """What a loop runs over, without ``enumerate`` and progress bars."""
    while isinstance(node, cst.Call) and node.args:
        if script.meaning(node.func) != "builtins.enumerate" and last(node.func) not in _PROGRESS:
            break
        node = node.args[0].value
    if isinstance(node, cst.Name):  # `bar = tqdm(loader)`
        values = [value for _, value in assignments(script, script.function(node), node.value)]
        if len(values) == 1 and isinstance(values[0], cst.Call) and last(values[0].func) in _PROGRESS:
            return bare(script, values[0])
    return node


def loops_around(script: Script, node: cst.CSTNode) -> list[cst.For]:
    """The ``for`` loops around a place, the innermost first; out of functions by their only call."""
    return [each for each, _ in way_out(script, node) if isinstance(each, cst.For)]


def way_out(script: Script, node: cst.CSTNode) -> list[tuple[cst.CSTNode, list[cst.Call]]]:
    """What is around a place, with the calls that one comes through, the innermost first.

    Raises:
        UnclearError: a function is called at several places.
    """
    found: list[tuple[cst.CSTNode, list[cst.Call]]] = []
    through: list[cst.Call] = []
    while True:
        function = None
        for each in script.above(node):
            if isinstance(each, cst.FunctionDef):
                function = each
                break
            if isinstance(each, (cst.For, cst.While)):
                found.append((each, list(through)))
        if function is None:
            return found
        calls = [call for call in script.callers(function) if call not in through]
        if not calls:
            return found
        if len(calls) > 1:
            lines = ", ".join(str(script.line(call)) for call in calls)
            raise script.unclear(calls[1], f"{function.name.value}() trains, and is called at lines {lines}.")
        through.append(calls[0])
        node = calls[0]


def shown_at(script: Script, node: cst.BaseExpression, through: list[cst.Call]) -> str:
    """The text of a function's value as its caller writes it, out through calls; "" where it has no name there."""
    for call in through:
        if not isinstance(node, cst.Name):
            return script.text(node) if _same_self(script, node, call) else ""
        function = script.function(node)
        if function is None:
            return node.value
        if node.value not in parameters(function):
            is_local = any(True for _ in assignments(script, function, node.value))
            if is_local:
                return ""
            continue
        value = bound(script, function, call, node.value)
        if not isinstance(value, (cst.Name, cst.Attribute)):
            return ""
        node = value
    return script.text(node)


def _same_self(script: Script, node: cst.BaseExpression, call: cst.Call) -> bool:
    return is_self(node) and script.owner(call) is script.owner(node)


def is_self(node: cst.CSTNode) -> bool:
    """Is it an attribute of ``self``?"""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name) and node.value == "self"
