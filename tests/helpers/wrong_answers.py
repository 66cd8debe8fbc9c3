"""The wrong answers in ``tests/course/wrong``, a file for each lesson."""

from __future__ import annotations

import importlib.util
import inspect
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


class Answers(list[tuple[str, Callable[..., Any], str]]):
    """The wrong answers of one file: ``@wrong("16.lower_bound", "that is computing alone")`` above each."""

    def __call__(self, name: str, words: str) -> Callable[[Any], Any]:
        """A decorator: what the check must say of this answer to the exercise."""

        def keep(answer: Any) -> Any:
            self.append((name, answer, words))
            return answer

        return keep


def wrong_answers() -> list[tuple[str, Callable[..., Any], str]]:
    """Of all lessons: (name of the exercise, the answer, what the check must say)."""
    return [one for path in sorted(FOLDER.glob("w*.py")) for one in load(path.stem).wrong]


def as_a_cell(kind: str, lesson: str) -> str:
    """A lesson's file of ``right`` or ``wrong`` answers, for a place where this module cannot be imported."""
    text = (COURSE / kind / f"{kind[0]}{lesson}.py").read_text(encoding="utf-8")
    here = f"from collections.abc import Callable\nfrom typing import Any\n{inspect.getsource(Answers)}"
    return text.replace("from wrong_answers import Answers\n", here)
