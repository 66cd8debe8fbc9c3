"""Every lesson asks before it tells."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import pytest

from workbench.course.build import lessons, read
from workbench.course.predictions.names import NAMES
from workbench.course.predictions.question import Question


def calls(cells: list[Any], function: str) -> list[tuple[str, ast.Call]]:
    """The calls of a function in cells, with their first argument."""
    found = []
    for cell in cells:
        if cell.cell_type != "code" or f"{function}(" not in cell.source:
            continue
        lines = [line for line in cell.source.splitlines() if not line.startswith(("%", "!"))]
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                assert isinstance(node.args[0], ast.Constant), ast.unparse(node)
                found.append((str(node.args[0].value), node))
    return found


def question(name: str, call: ast.Call) -> Question:
    """What a call asks."""
    options: dict[str, Any] = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    kind = next(kind for kind in ("choices", "number", "order") if kind in options)
    return Question(name, "", kind, tuple(options.get("choices") or options.get("order") or ()))


@pytest.mark.course
def test_every_lesson_asks_before_it_tells() -> None:
    """At least two questions, each of this lesson; each is told once, by a computed fact, in a cell that comes folded.

    A notebook shows the value of a cell's last expression, and no other; so a question or a fact ends its cell. A fact
    is one of the choices, also on a machine where the run comes out otherwise than in the committed notebook.
    """
    known = []
    for lesson in lessons([]):
        cells = read(lesson).cells
        asked, told = calls(cells, "predict"), calls(cells, "reveal")
        names = [name for name, _ in asked]
        known += names
        assert len(set(names)) == len(names) >= 2, lesson
        assert all(name.startswith(f"{lesson.stem[:2]}.") for name in names), lesson
        assert Counter(name for name, _ in told) == Counter(names), lesson
        assert [name for name, call in told if isinstance(call.args[1], ast.Constant)] == []  # stays with other code
        for cell in cells:
            lines = [line for line in cell.source.splitlines() if not line.startswith((" ", ")", "%", "!"))]
            first = [line.partition("(")[0] for line in lines]
            if cell.cell_type == "code" and {"predict", "reveal"} & set(first):
                assert first[-1] in ("predict", "reveal"), cell.source
                assert len({"predict", "reveal"} & set(first)) == 1, cell.source
            folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
            assert folded == (cell.cell_type == "code" and "\nreveal(" in f"\n{cell.source}"), cell.source
        for name, call in told:
            for fact in facts(call.args[1]):
                assert question(name, dict(asked)[name]).accept(fact) == fact
    assert list(NAMES) == known, "what progress() counts"


def facts(node: ast.expr) -> list[str]:
    """The texts that ``a if x else b`` may come to."""
    if isinstance(node, ast.IfExp):
        return [*facts(node.body), *facts(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
