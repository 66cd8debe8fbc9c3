"""Where one goes from a notebook: previous, next, and from lesson to exercises and back.

The links are relative, so they work in JupyterLab, on a forge and on the site. Learners' notebooks do not lead to the
solutions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_TITLE = re.compile(r"^# # (.+)$", re.MULTILINE)
_EXERCISES = re.compile(r"^# %% (?!\[markdown\]).*\"(?:exercise|both)\"", re.MULTILINE)


@dataclass(frozen=True)
class Lesson:
    """What a link says about a lesson.

    Attributes:
        stem: the name of its files.
        title: its first heading.
        exercises: whether there are any.
    """

    stem: str
    title: str
    exercises: bool

    @property
    def label(self) -> str:
        return f"{self.stem[:2]} {self.title}"


def course(folder: Path) -> list[Lesson]:
    """All lessons of ``lessons/``, in order, from their texts.

    Raises:
        ValueError: a lesson has no heading.
    """
    found = []
    for path in sorted(folder.glob("[0-9]*.py")):
        text = path.read_text(encoding="utf-8")
        title = _TITLE.search(text)
        if title is None:
            raise ValueError(f"{path.name} has no heading: a lesson begins with a markdown cell, '# # Title'")
        found.append(Lesson(path.stem, title[1].strip(), bool(_EXERCISES.search(text))))
    return found


def navigation(lessons: list[Lesson], stem: str, kind: str) -> str:
    """The text of a notebook's last cell.

    Args:
        lessons: of the whole course.
        stem: the lesson's.
        kind: ``notebooks``, ``exercises`` or ``solutions``.

    Example:
        >>> one, two = Lesson("00_a", "First", False), Lesson("01_b", "Second", True)
        >>> navigation([one, two], "01_b", "notebooks")
        'Previous: [00 First](00_a.ipynb) · Exercises: [01 Second](../exercises/01_b.ipynb)'
        >>> navigation([one, two], "01_b", "exercises")
        'Lesson: [01 Second](../notebooks/01_b.ipynb)'
    """
    row = [each for each in lessons if kind == "notebooks" or each.exercises]
    (here,) = (i for i, each in enumerate(row) if each.stem == stem)
    parts = [_link(word, row[here], other) for word, other in _others(row[here], kind)]
    around = [("Previous", here - 1), ("Next", here + 1)]
    beside = [_link(word, row[i], kind, here=kind) for word, i in around if 0 <= i < len(row)]
    return " · ".join(beside + parts if kind == "notebooks" else parts + beside)


def _others(lesson: Lesson, kind: str) -> list[tuple[str, str]]:
    if kind == "notebooks":
        return [("Exercises", "exercises")] if lesson.exercises else []
    back = [("Lesson", "notebooks")]
    return [*back, ("Exercises", "exercises")] if kind == "solutions" else back


def _link(word: str, lesson: Lesson, kind: str, here: str = "") -> str:
    folder = "" if kind == here else f"../{kind}/"
    told = f"{word} {kind}" if here in ("exercises", "solutions") else word
    return f"{told}: [{lesson.label}]({folder}{lesson.stem}.ipynb)"
