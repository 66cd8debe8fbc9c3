"""The table of contents that the side bar in JupyterLab reads: lessons, their minutes alone, and their exercises.

``make lessons`` writes it into the extension.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from workbench.course.links import course
from workbench.course.tasks import names, task

FILE = Path(__file__).parents[1] / "labextensions" / "data-parallel-workbench" / "static" / "course.json"
TWO_HOURS = ("01", "02", "03", "04", "11")
"""The lessons whose exercises a class does in two hours, as README.md says; of 11 four cards."""
_MINUTES = re.compile(r"\*\*Alone:\*\* (\d+) minutes to read(?: and try)?,? ?(\d+)?")


def contents(lessons: Path) -> dict[str, Any]:
    """What stands in the file.

    Args:
        lessons: the folder with the lessons' texts.

    Raises:
        ValueError: the head of a lesson does not say how long it takes.
    """
    found = [
        {
            "stem": each.stem,
            "title": each.title,
            "minutes": _minutes(lessons / f"{each.stem}.py"),
            "exercises": [_exercise(name) for name in names() if name.startswith(f"{each.stem[:2]}.")],
        }
        for each in course(lessons)
    ]
    return {"lessons": found, "two_hours": TWO_HOURS}


def write(lessons: Path) -> None:
    """Write the file."""
    FILE.write_text(as_text(contents(lessons)), encoding="utf-8")


def as_text(found: dict[str, Any]) -> str:
    """The file's text."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _exercise(name: str) -> dict[str, Any]:
    one = task(name)
    return {"name": name, "title": one.title, "asks_cause": one.asks_cause}


def _minutes(lesson: Path) -> int:
    """Alone: to read, and to do."""
    text = re.sub(r"\s*\n# ?", " ", lesson.read_text(encoding="utf-8"))
    found = _MINUTES.search(text)
    if found is None:
        raise ValueError(f"{lesson.name} does not say in its head how long it takes: '**Alone:** 10 minutes to read'")
    return int(found[1]) + int(found[2] or 0)
