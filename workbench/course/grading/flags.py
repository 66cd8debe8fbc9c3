"""What a teacher should look at: the course's own solutions, the collective that was asked for, doors to the judge.

A flag is no verdict. It is found by reading the cells; what learners' functions ask of ``comm`` is also seen as they
run, by the judge.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from workbench.course.grading.live.source import Definition, definition, needed, statements
from workbench.course.judging.task import CommTask, Task, inserted

_TASKS = "workbench.course.tasks"
_COLLECTIVES = "workbench.collectives"
_LONG, _VERY_LONG = 5, 8  # statements
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_ALONE = {"rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_initialized", "init", "shutdown"}
_ALONE |= {"now", "members", "compute", "fingerprint", "poll", "synchronize"}
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
        copied = _copied(function, task) or any(inserted(name) in cell for cell in cells)
        whole = ["is the course's own solution, as solution() inserts it"] if copied else []
        mine = [*for_all, *whole, *_ready_made(own, function, task), *_doors(own)]
        if mine:
            found[name] = list(dict.fromkeys(mine))
    return found


def used(task: Task, calls: Collection[str], passed: bool) -> list[str]:
    """Flags of what a function has asked of ``comm`` or ``hvd`` while it ran."""
    wanted = [call for call in sorted(calls) if call in task.asks_for]
    found = [f"calls {call}(), which was to be written" for call in wanted]
    if passed and task.of_ranks and not task.live and not any(map(_sends, calls)):
        found.append("its ranks have sent no message: do they share a variable?")
    return found


def _sends(call: str) -> bool:
    """Does a call tell another rank anything?"""
    kind, _, verb = call.partition(".")
    return kind in ("comm", "hvd") and verb not in _ALONE


def _copied(function: Definition | None, task: Task) -> bool:
    """Is a function the course's own solution, but for comments and, if it is long, for the names in it?

    Two people may write the same few lines, and a card's repair is one line.
    """
    if function is None or task.asks_cause:
        return False
    (own,) = (one for one in ast.parse(task.solution()).body if isinstance(one, ast.FunctionDef))
    length = sum(isinstance(node, ast.stmt) for one in _body(own) for node in ast.walk(one))
    if length < _LONG:
        return False
    return _text(function, length >= _VERY_LONG) == _text(own, length >= _VERY_LONG)


def _body(function: Definition) -> list[ast.stmt]:
    first = function.body[0]
    says = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return function.body[says:]


def _text(function: Definition, renamed: bool) -> str:
    """A function's body; its own names by the order in which they occur, if they may be others."""
    text = "\n".join(map(ast.unparse, _body(function)))
    if not renamed:
        return text
    own = {one.arg for one in function.args.args}
    own |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    numbers: dict[str, str] = {}
    return _NAME.sub(lambda at: numbers.setdefault(at[0], f"_{len(numbers)}") if at[0] in own else at[0], text)


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
