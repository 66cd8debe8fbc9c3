"""What a teacher should look at: the course's own solutions, the collective that was asked for, doors to the judge.

A flag is no verdict. It is found by reading the cells; what learners' functions ask of ``comm`` is also seen as they
run, by the judge.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

from workbench.course.grading.live.source import definition, needed, statements
from workbench.course.judging.task import CommTask, Task

_TASKS = "workbench.course.tasks"
_COLLECTIVES = "workbench.collectives"
_DOORS = {"gc", "ctypes", "importlib", "__import__", "eval", "exec", "meta_path"}


def asks_for(task: Task) -> tuple[str, ...]:
    """What a function must not take ready-made."""
    return (*task.asks_for, *((_COLLECTIVES,) if isinstance(task, CommTask) else ()))


def flags(cells: Sequence[str], here: Mapping[str, Task], known: Mapping[str, Task]) -> dict[str, list[str]]:
    """By exercise, what is to be looked at.

    Args:
        cells: the notebook's.
        here: its exercises.
        known: all exercises.
    """
    body = statements(cells)
    for_all = list(dict.fromkeys(_solutions(body, known)))
    found: dict[str, list[str]] = {}
    for name, task in here.items():
        function = definition(body, name)
        own = needed(body, function) if function is not None else []
        mine = [*for_all, *_ready_made(own, function, task), *_doors(own)]
        if mine:
            found[name] = list(dict.fromkeys(mine))
    return found


def used(task: Task, calls: Collection[str], passed: bool) -> list[str]:
    """Flags of what a function has asked of ``comm`` while it ran."""
    wanted = [call for call in sorted(calls) if call in task.asks_for]
    found = [f"calls {call}(), which was to be written" for call in wanted]
    if passed and isinstance(task, CommTask) and not any(call.startswith("comm.") for call in calls):
        found.append("its ranks have sent no message: do they share a variable?")
    return found


def _imports(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Name here → dotted name of what was imported under it."""
    found = {}
    for node in (node for one in body for node in ast.walk(one)):
        if isinstance(node, ast.Import):
            for one in node.names:
                found[one.asname or one.name.partition(".")[0]] = one.name if one.asname else one.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                found[one.asname or one.name] = f"{node.module}.{one.name}"
    return found


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """The dotted name of ``a.b.c``, with what ``a`` was imported as."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    return f"{_dotted(node.value, names)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def _solutions(body: Sequence[ast.stmt], known: Mapping[str, Task]) -> Iterator[str]:
    """Every use of a solution out of the package."""
    names = _imports(body)
    solved = {f"{task.reference.__module__}.{task.reference.__name__}" for task in known.values()}
    for node in (node for one in body for node in ast.walk(one)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            dotted = _dotted(node, names)
            if dotted in solved:
                yield f"uses the course's own solution {dotted.rpartition('.')[2]}"
            if isinstance(node, ast.Attribute) and node.attr in ("reference", "solution") and _of_a_task(node, names):
                yield f"uses a task's .{node.attr}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_TASKS):
            for one in node.names:
                if one.name in ("*", "TASKS") or f"{node.module}.{one.name}" in solved:
                    yield f"imports {one.name} from {node.module}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "BEGIN SOLUTION" in node.value:
            yield "reads the course's sources"


def _of_a_task(node: ast.Attribute, names: Mapping[str, str]) -> bool:
    called = node.value.func if isinstance(node.value, ast.Call) else node.value
    return _dotted(called, names).startswith(_TASKS) or node.attr == "reference"


def _ready_made(own: Sequence[ast.stmt], function: ast.stmt | None, task: Task) -> Iterator[str]:
    """What the function's own statements take ready-made."""
    names = _imports(own)
    first = function.args.args[0].arg if isinstance(function, ast.FunctionDef) and function.args.args else ""
    unwanted = asks_for(task)
    for node in (node for one in own for node in ast.walk(one)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            dotted = _dotted(node, {**names, first: "comm"} if first else names)
            if dotted in unwanted or dotted.startswith(tuple(f"{one}." for one in unwanted)):
                yield f"uses {dotted}, which was to be written"


def _doors(own: Sequence[ast.stmt]) -> Iterator[str]:
    """Names by which one gets at what is not one's own."""
    names = _imports(own)
    for node in (node for one in own for node in ast.walk(one)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            parts = set(_dotted(node, names).split("."))
            yield from (f"uses {one}" for one in sorted(parts & _DOORS))
            if _dotted(node, names) == "sys.modules":
                yield "uses sys.modules"
