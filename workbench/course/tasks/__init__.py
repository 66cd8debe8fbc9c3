"""All exercises by name. Each lesson's stand in a file of its own, ``t02_….py``, with the solutions.

Beside it ``t02_….txt`` has their hints and usual mistakes, in the form that ``judging/mistake.py`` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path

from workbench.course.judging.mistake import read
from workbench.course.judging.task import Task


@cache
def names() -> tuple[str, ...]:
    """The names of all exercises, in the order of the lessons."""
    return tuple(_all())


def task(name: str) -> Task:
    """The exercise of that name.

    Raises:
        NoSuchExerciseError: there is none.
    """
    found = _all()
    if name not in found:
        same = get_close_matches(str(name), found, n=3, cutoff=0.5)
        there = [each for each in found if each[:2] == str(name)[:2]] or found  # of its lesson
        cure = f"Did you mean {' or '.join(map(repr, same))}?" if same else f"There are: {', '.join(there)}."
        raise NoSuchExerciseError(f"There is no exercise {name!r}. {cure}")
    return found[name]


class NoSuchExerciseError(ValueError):
    """A mistyped name. A notebook shows the text alone: a traceback teaches nothing here."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def before(lesson: str) -> list[str]:
    """The names of all exercises of earlier lessons.

    Example:
        >>> before("3") == before("03"), before("1")
        (True, [])
    """
    return [name for name in names() if name.partition(".")[0] < f"{int(lesson):02}"]


@cache
def _all() -> dict[str, Task]:
    """By name, in the order of the lessons; those of a lesson in that of the files' names."""
    files = sorted(Path(__file__).parent.glob("t[0-9]*.py"))
    found = sorted((one for path in files for one in _in_file(path)), key=lambda one: one.name[:2])
    return {one.name: one for one in found}


def _in_file(path: Path) -> Iterator[Task]:
    fields = read(path.with_suffix(".txt"))
    for one in import_module(f"{__name__}.{path.stem}").TASKS:
        found = replace(one, **fields[one.name])
        if not all(found.hints):
            raise ValueError(f"{path.stem}.txt has no hints for {one.name}")
        yield found
