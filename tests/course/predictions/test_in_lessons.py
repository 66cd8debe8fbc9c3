"""Every lesson asks before it tells."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from workbench.course.build import lessons, read
from workbench.course.predictions.names import NAMES
from workbench.course.predictions.question import Question

LESSONS = lessons([])


def calls(lesson: Path, function: str) -> list[tuple[str, ast.Call]]:
    """The calls of a function in a lesson's notebook, with their first argument."""
    found = []
    for cell in read(lesson).cells:
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
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_asks_twice_and_tells_what_it_asked(lesson: Path) -> None:
    """At least two questions, each of this lesson; each is told once, by a computed fact."""
    asked, told = calls(lesson, "predict"), calls(lesson, "reveal")
    names = [name for name, _ in asked]
    assert len(set(names)) == len(names) >= 2
    assert all(name.startswith(f"{lesson.stem[:2]}.") for name in names)
    assert Counter(name for name, _ in told) == Counter(names)
    assert [name for name, call in told if isinstance(call.args[1], ast.Constant)] == []  # stays when the code changes


@pytest.mark.course
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_question_and_its_fact_end_their_cells(lesson: Path) -> None:
    """A notebook shows the value of a cell's last expression, and no other."""
    for cell in read(lesson).cells:
        first = [
            line.partition("(")[0] for line in cell.source.splitlines() if not line.startswith((" ", ")", "%", "!"))
        ]
        if cell.cell_type == "code" and {"predict", "reveal"} & set(first):
            assert first[-1] in ("predict", "reveal"), cell.source
            assert len({"predict", "reveal"} & set(first)) == 1, cell.source


@pytest.mark.course
def test_every_question_is_known_to_progress() -> None:
    """What ``progress()`` counts can be answered somewhere."""
    assert list(NAMES) == [name for lesson in LESSONS for name, _ in calls(lesson, "predict")]


@pytest.mark.course
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_the_fact_is_not_to_be_seen_in_the_source(lesson: Path) -> None:
    """A cell that tells comes folded; no other does."""
    for cell in read(lesson).cells:
        folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        assert folded == (cell.cell_type == "code" and "\nreveal(" in f"\n{cell.source}"), cell.source


def facts(node: ast.expr) -> list[str]:
    """The texts that ``a if x else b`` may come to."""
    if isinstance(node, ast.IfExp):
        return [*facts(node.body), *facts(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


@pytest.mark.course
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_whatever_the_fact_is_it_is_one_of_the_choices(lesson: Path) -> None:
    """Also on a machine where the run comes out otherwise than in the committed notebook."""
    asked = dict(calls(lesson, "predict"))
    for name, call in calls(lesson, "reveal"):
        for fact in facts(call.args[1]):
            assert question(name, asked[name]).accept(fact) == fact
