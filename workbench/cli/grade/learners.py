"""Who handed in what: the marks of a run by learner, and files with a line for each learner."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.cli.grade.results import ExerciseState, NotebookResult
from workbench.common.extras import cure, has
from workbench.errors import LaunchError


@dataclass
class Learner:
    """Marks of a learner: exercise → points and most points; open: lesson, or ``all`` → why they are not final."""

    name: str
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)

    def of(self, lesson: str) -> dict[str, tuple[int, int]]:
        """The marks in a lesson, or in ``all``."""
        return {name: mark for name, mark in self.marks.items() if lesson in (name.partition(".")[0], "all")}


def learner_of(path: str, words: Sequence[str]) -> str:
    """Whose notebook is it? The first folder below a folder that was named, or else the folder that it is in.

    Example:
        >>> learner_of("all/kim/week1/03.ipynb", ["all"]), learner_of("kim/03.ipynb", ["kim"])
        ('kim', 'kim')
    """
    file = Path(path).absolute()
    for word in (Path(word).absolute() for word in words):
        if file.is_relative_to(word) and len(parts := file.relative_to(word).parts) > 1:
            return _plain(parts[0])
    return _plain(file.parent.name)


def _plain(name: str) -> str:
    """One spelling of a name: some systems write ü as two characters."""
    return unicodedata.normalize("NFC", name.strip())


def by_learner(notebooks: Iterable[NotebookResult]) -> list[Learner]:
    """The learners of these notebooks. What is there twice, or could not be judged, is not final."""
    found: dict[str, Learner] = {}
    graded = sorted(notebooks, key=lambda one: one.learner)
    for notebook in graded:
        learner = found.setdefault(notebook.learner, Learner(notebook.learner))
        if notebook.problem:
            learner.open["all"] = f"{notebook.path} could not be graded"
        for name, result in notebook.exercises.items():
            why = f"{name} is there twice, in {notebook.path}, too" if name in learner.marks else ""
            if why or result.state is ExerciseState.NOT_JUDGED:
                learner.open[name.partition(".")[0]] = learner.open["all"] = why or f"{name} was not judged"
            learner.marks[name] = (result.points, result.of)
    for notebook in graded:
        for name, of in notebook.missing.items():
            found[notebook.learner].marks.setdefault(name, (0, of))
    return list(found.values())


def needed(who: str, *more: str) -> None:
    """Raise a LaunchError if what signs is not installed."""
    if missing := [name for name in ("jwt", "cryptography", *more) if not has(name)]:
        raise LaunchError(f"{who} needs {', '.join(missing)}: {cure('classroom')}")


def rows(path: Path, *columns: str) -> list[dict[str, str]]:
    """The lines of a CSV file with ``learner`` and these columns; else a LaunchError."""
    try:
        lines = list(csv.DictReader(path.read_bytes().decode("utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise LaunchError(f"{path} is not a CSV file in UTF-8: {error}.") from None
    for number, line in enumerate(lines or [{}], 2):
        if missing := [name for name in ("learner", *columns) if line.get(name) is None]:
            raise LaunchError(f"{path}, line {number}: no {missing[0]}; needed: learner, {', '.join(columns)}.")
        line["learner"] = _plain(line["learner"].removeprefix("'"))  # as before =, see results.field_of
    return lines


def named(path: Path, column: str) -> dict[str, dict[str, str]]:
    """Learner → line of a file; a LaunchError if one has two, or something is empty."""
    found: dict[str, dict[str, str]] = {}
    for line in rows(path, column):
        if line["learner"] in found or not (line["learner"] and line[column].strip()):
            raise LaunchError(f"{path}: {line['learner']!r} is there twice, or without a {column}.")
        found[line["learner"]] = {**line, column: line[column].strip()}
    return found
