"""Plain English, by rules: no lesson, verdict, hint or page has what stops somebody who learnt it from manuals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.course.build import ROOT
from workbench.course.tasks import names, task

_PRONOUN = r"(it|they|he|she|we|you|there|this|these|that|nobody|somebody|a node|a rank)"
RULES = {
    "amid": r"\bamid\b",
    "beside, where something is compared": r"(^|[.:] )Beside \w",
    "beside, for: during": r"\bbeside (backward|forward|the backward|the forward)\b",
    "for, where it means because": rf"[,;:] for {_PRONOUN} (is|are|has|have|was|were|may|can|must|do|does|did|not)\b",
    "at most … pass": r"at most [\d.,]+ (times as much )?pass(es)?\b",
    "1 of several": r"(?<![−–-] )(?<![−–-])\b1 (rounds|messages|steps|ranks|bytes|samples|calls|items|layers)\b",
    "let go of": r"\blet(s|ting)? go of\b",
    "turned round": r"\bturned? round\b",
    "How near": r"\bHow near\b",
    "deal out again": r"\bdealt? (\w+ )*out again\b",
    "know one thing": r"\b[Nn]either of them knows\b",
}
OF_VERDICTS = {
    **RULES,
    "yours as a noun": r"\b[Yy]ours (is|are|has|have|gives?|sends?|does|deals?|takes?|repeats?|forbid)\b",
}
_VERDICTS = ("judging", "tasks", "mistakes", "provenance", "training")


def broken(text: str, rules: dict[str, str]) -> list[str]:
    """The rules that a text breaks, with the words that do."""
    found = ((name, re.search(rule, text, re.MULTILINE)) for name, rule in rules.items())
    return [f"{name}: …{text[max(0, at.start() - 40) : at.end() + 40]}…" for name, at in found if at]


def strings(path: Path) -> Iterator[str]:
    """All texts in a file of code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_lessons() -> None:
    """A lesson's text; its comments are one text without the marks."""
    for path in sorted((ROOT / "lessons").glob("*.py")):
        text = re.sub(r"\n# ?", " ", "\n" + path.read_text(encoding="utf-8"))
        assert broken(text, RULES) == []


def test_pages() -> None:
    """The pages of the documentation, and the README."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = re.sub(r"`[^`\n]*`", "", path.read_text(encoding="utf-8"))  # names are no prose
        assert broken(re.sub(r"(?<!\n)\n(?!\n)", " ", text), RULES) == [], path


@pytest.mark.parametrize("folder", _VERDICTS)
def test_verdicts_and_hints(folder: str) -> None:
    """What check(), hint() and show() say."""
    for path in sorted((ROOT / "workbench" / "course" / folder).glob("*.py")):
        for text in strings(path):
            assert broken(text, OF_VERDICTS) == [], path


def test_the_texts_of_exercises() -> None:
    """A docstring is what the learner is asked to do."""
    for name in names():
        assert broken(task(name).reference.__doc__ or "", OF_VERDICTS) == [], name
