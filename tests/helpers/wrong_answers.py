"""The wrong answers in ``tests/course/wrong``, a file for each lesson."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

COURSE = Path(__file__).parents[1] / "course"
FOLDER = COURSE / "wrong"


def load(name: str, folder: Path = FOLDER) -> Any:
    """One lesson's file, as a module."""
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrong_answers() -> list[tuple[str, Callable[..., Any], str]]:
    """Of all lessons: (name of the exercise, the answer, what the check must say)."""
    files = [load(path.stem).WRONG for path in sorted(FOLDER.glob("w*.py"))]
    return [(name, answer, words) for file in files for name, answers in file.items() for answer, words in answers]
