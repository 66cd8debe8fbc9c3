"""The right answers in ``tests/course/right``, a file for each lesson: unlike the official solution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wrong_answers import COURSE, load

FOLDER = COURSE / "right"


def right_answers() -> list[tuple[str, Callable[..., Any]]]:
    """Of all lessons: (name of the exercise, the answer)."""
    files = [load(path.stem, FOLDER).RIGHT for path in sorted(FOLDER.glob("r*.py"))]
    return [(name, answer) for file in files for name, answers in file.items() for answer in answers]
