"""The lines of a function that ran, as a text. What did not run is left out; what it is, the source itself says."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator, Sequence
from pkgutil import resolve_name
from typing import Any

from workbench.course.followed.trace import Passed

_LEFT_OUT = "…"


def listing(passed: Sequence[Passed], stop: str = "") -> str:
    """The lines that ran, a paragraph for each call.

    Args:
        passed: as a follower tells them.
        stop: of these calls those of one stop; all without it.
    """
    shown = [one for one in passed if not stop or one.stop == stop]
    return "\n\n".join(f"{one.name}   [{one.thread} thread]\n{excerpt(one.path, one.lines)}" for one in shown)


def excerpt(path: str, ran: Collection[int]) -> str:
    """A function's lines that ran.

    A condition that was false is left out with what it guards, unless it calls something: that call did run.

    Args:
        path: ``module:Class.function``.
        ran: numbers of lines in its file.
    """
    function = inspect.unwrap(resolve_name(path))
    lines, first = inspect.getsourcelines(function)
    margin = len(lines[0]) - len(lines[0].lstrip())
    lines = [line[margin:].rstrip() for line in lines]
    tree = ast.parse("\n".join(lines)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    kept = set(_kept(tree.body, {number - first + 1 for number in ran}))
    head = range(tree.lineno, _begin(tree.body))
    body = [*(line for line in head if not lines[line - 1].lstrip().startswith(('"""', "@"))), *sorted(kept)]
    return "\n".join(_with_gaps(lines, list(dict.fromkeys(body)), tree))


def _with_gaps(lines: Sequence[str], kept: Sequence[int], tree: ast.FunctionDef) -> Iterator[str]:
    spoken = {number for node in tree.body if _is_docstring(node) for number in _lines(node)}
    before = 0
    for number in kept:
        skipped = [one for one in range(before + 1, number) if before and one not in spoken and _says(lines[one - 1])]
        if skipped:
            yield f"{_indent(lines[skipped[0] - 1])}{_LEFT_OUT}"
        yield lines[number - 1]
        before = number


def _kept(body: Sequence[ast.stmt], ran: Collection[int]) -> Iterator[int]:
    """Of these statements, the lines to show."""
    for node in body:
        parts = _parts(node)
        if _is_docstring(node):
            continue
        header = range(node.lineno, _begin(parts[0])) if parts else _lines(node)
        if not any(line in ran for line in header):
            continue
        inside = [list(_kept(part, ran)) for part in parts]
        if parts and isinstance(node, ast.If) and not any(inside) and not _calls(node.test):
            continue
        yield from header
        for part, lines in zip(parts, inside, strict=True):
            if lines and part is not parts[0] and not _is_elif(node, part):
                yield _begin(part) - 1  # else:, except …:, finally:
            yield from lines


def _parts(node: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of a statement."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return []
    found = [getattr(node, name, None) for name in ("body", "orelse")]
    found += [handler.body for handler in getattr(node, "handlers", [])]
    found += [getattr(node, "finalbody", None)]
    return [part for part in found if part]


def _is_elif(node: ast.stmt, part: Sequence[ast.stmt]) -> bool:
    return isinstance(node, ast.If) and part is node.orelse and isinstance(part[0], ast.If)


def _begin(body: Sequence[ast.stmt]) -> int:
    return body[0].lineno


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _calls(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(test))


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _says(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("#")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
