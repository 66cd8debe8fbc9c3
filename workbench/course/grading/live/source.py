"""A function's own source out of a notebook: its definition, and the definitions and imports that it names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress

from workbench.course.grading.cells import python_of

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def statements(cells: Sequence[str]) -> list[ast.stmt]:
    """The statements of all cells that Python can read, in their order."""
    found: list[ast.stmt] = []
    for cell in cells:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            found += ast.parse(python_of(cell)).body
    return found


def definition(body: Sequence[ast.stmt], name: str) -> Definition | None:
    """The last function that is the answer to an exercise."""
    found = [one for one in body if isinstance(one, Definition) and name in map(_exercise, one.decorator_list)]
    return found[-1] if found else None


def _exercise(decorator: ast.expr) -> str:
    if isinstance(decorator, ast.Call) and decorator.args and isinstance(decorator.args[0], ast.Constant):
        function = decorator.func
        if getattr(function, "id", getattr(function, "attr", "")) == "exercise":
            return str(decorator.args[0].value)
    return ""


def needed(body: Sequence[ast.stmt], wanted: ast.stmt) -> list[ast.stmt]:
    r"""A statement and the top-level definitions, imports and assignments whose names it uses, in their order.

    Example:
        >>> body = ast.parse("import numpy as np\nnp.allclose = max\nk = 2\ndef f(x): return np.sum(x) * k").body
        >>> [ast.unparse(one).partition(":")[0] for one in needed(body, body[-1])]
        ['import numpy as np', 'k = 2', 'def f(x)']
    """
    binding: dict[str, list[int]] = {}
    for i, one in enumerate(body):
        for name in bound(one):
            binding.setdefault(name, []).append(i)
    chosen: set[int] = set()
    ahead = [body.index(wanted)]
    while ahead:
        i = ahead.pop()
        if i not in chosen:
            chosen.add(i)
            used = (node.id for node in ast.walk(body[i]) if isinstance(node, ast.Name))
            ahead += [j for name in used for j in binding.get(name, ())[-1:]]
    return [body[i] for i in sorted(chosen)]


def bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement defines, imports or assigns, where that is all it does."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from ((one.asname or one.name).partition(".")[0] for one in statement.names)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        parts = [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
        if all(isinstance(part, ast.Name) for part in parts):
            yield from (part.id for part in parts if isinstance(part, ast.Name))


def own_source(cells: Sequence[str], name: str) -> tuple[str, str] | None:
    """The source to run for an exercise, and the function's name in it; None if no cell defines it."""
    body = statements(cells)
    function = definition(body, name)
    if function is None:
        return None
    chosen = needed(body, function)
    function.decorator_list = []
    return "\n".join(map(ast.unparse, chosen)) + "\n", function.name
