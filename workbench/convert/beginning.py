"""Where a converted script begins: imports, ``init()`` and the device."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from workbench.convert import randomness
from workbench.convert.edits import Edits
from workbench.convert.script import Script, inside, last
from workbench.convert.source import Reason, RefusedError


def convert(edits: Edits, ours: str, pin: str, imports: list[str], functions: Sequence[str] = ()) -> None:
    """Insert them.

    Args:
        edits: where to.
        ours: the module, such as ``workbench.torch``.
        pin: lines that choose this rank's device.
        imports: what these and other new lines need; the framework first.
        functions: that new lines call.
    """
    script = edits.script
    if "hvd" in script.used:
        line = next(script.line(node) for node in script.all(cst.Name) if node.value == "hvd")
        raise RefusedError(
            script.name, Reason(line, "the name hvd is used already, and the converted script needs it.")
        )
    place = _after_imports(script, imports[0].rpartition(" ")[2])
    drawn = randomness.unseeded(script)
    needed = dict.fromkeys([*imports, *randomness.imports(script, drawn)])
    lines = [line for line in needed if not _is_there(script, line)]
    lines.append(f"import {ours} as hvd")
    changed = [*edits.changed(), *(call for calls in drawn.values() for call in calls)]
    start = _guard(script) if _runs_only_in_functions(script, changed) else None
    for each in lines:
        edits.after(place, 1, each, said=False)
    for each in functions:
        edits.after(place, 4, f"\n\n{each}", said=False)
    if start is None:
        edits.after(place, 1, "\n\n\nhvd.init()" if functions else "\nhvd.init()")
        put, where = edits.after, place
    else:
        edits.before(start, 1, "hvd.init()")
        put, where = edits.before, start
    if pin:
        put(where, 3, pin)
    if drawn:
        put(where, 1, randomness.lines(script, drawn), "all ranks draw the same random numbers")


def _after_imports(script: Script, framework: str) -> cst.CSTNode:
    """The statement after which all that is needed is imported."""
    body = script.module.body
    place = 0
    for index, node in enumerate(body):
        if not _imports(node) and not _is_text(node):
            break
        place = index
    for index, node in enumerate(body):
        if framework in _bound(script, node):
            place = max(place, index)
            break
    return body[place]


def _imports(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.SimpleStatementLine):
        return all(isinstance(each, (cst.Import, cst.ImportFrom)) for each in node.body)
    if isinstance(node, cst.Try):
        return all(_imports(each) for each in node.body.body)
    return False


def _is_text(node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.SimpleStatementLine)
        and isinstance(node.body[0], cst.Expr)
        and isinstance(node.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


def _bound(script: Script, node: cst.CSTNode) -> set[str]:
    """The names that an import at the top of the module gives."""
    if not isinstance(node, cst.SimpleStatementLine):
        return set()
    found = set()
    for each in node.body:
        if isinstance(each, (cst.Import, cst.ImportFrom)) and not isinstance(each.names, cst.ImportStar):
            for alias in each.names:
                name = script.text(alias.asname.name) if alias.asname else script.text(alias.name).split(".")[0]
                found.add(name)
    return found


def _is_there(script: Script, line: str) -> bool:
    wanted = line.rpartition(" ")[2]
    return any(wanted in _bound(script, node) for node in script.module.body)


def _guard(script: Script) -> cst.CSTNode | None:
    """The first statement under ``if __name__ == "__main__":``."""
    for node in script.module.body:
        if isinstance(node, cst.If) and "__name__" in script.text(node.test):
            return node.body.body[0] if isinstance(node.body, cst.IndentedBlock) else node.body
    return None


def _runs_only_in_functions(script: Script, nodes: list[cst.CSTNode]) -> bool:
    """Is none of these in the module itself, but under ``if __name__ == "__main__":``?"""
    own = {each.name.value for each in script.all(cst.FunctionDef)}
    own |= {each.name.value for each in script.all(cst.ClassDef)}
    for statement in script.module.body:
        if isinstance(statement, cst.SimpleStatementLine) and any(
            last(call.func) in own for call in inside(statement, cst.Call)
        ):
            return False  # such a function may ask for the rank
    for node in nodes:
        top = node
        for each in script.above(node):
            if each is not script.module:
                top = each
        is_guard = isinstance(top, cst.If) and "__name__" in script.text(top.test)
        if not is_guard and not isinstance(top, (cst.FunctionDef, cst.ClassDef)):
            return False
    return True
