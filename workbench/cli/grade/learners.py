"""Who handed in what: the marks of a run by learner, for gradebooks."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.cli.grade.results import ExerciseState, NotebookResult


@dataclass
class Learner:
    """One learner's marks.

    Args:
        name: of the learner's folder.
        marks: exercise → points and the most points.
        open: lesson → why its marks are not final; ``all`` if any is not.
    """

    name: str
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)

    def total(self, lesson: str) -> tuple[int, int]:
        """Points and the most points in a lesson, or in ``all``.

        Example:
            >>> Learner("kim", {"03.a": (1, 1), "03.b": (0, 3), "04.a": (2, 2)}).total("03")
            (1, 4)
        """
        of_it = [mark for name, mark in self.marks.items() if lesson in (name.partition(".")[0], "all")]
        return sum(points for points, _ in of_it), sum(of for _, of in of_it)


def learner_of(path: str, words: Sequence[str]) -> str:
    """Whose notebook is it? The first folder below a folder that was named, or else the folder that it is in.

    Example:
        >>> learner_of("all/kim/week1/03.ipynb", ["all"]), learner_of("kim/03.ipynb", ["kim"])
        ('kim', 'kim')
    """
    file = Path(path).absolute()
    for word in (Path(word).absolute() for word in words):
        if file.is_relative_to(word) and len(parts := file.relative_to(word).parts) > 1:
            return plain(parts[0])
    return plain(file.parent.name)


def plain(name: str) -> str:
    """One spelling of a name: some systems write ü as two characters."""
    return unicodedata.normalize("NFC", name.strip())


def by_learner(notebooks: Iterable[NotebookResult]) -> list[Learner]:
    """The learners of these notebooks, by name.

    Who hands in an exercise twice, or something that could not be judged, has marks that are not final.

    Args:
        notebooks: each with its learner.
    """
    found: dict[str, Learner] = {}
    where: dict[tuple[str, str], str] = {}
    missing: list[tuple[Learner, str, int]] = []
    for notebook in notebooks:
        learner = found.setdefault(notebook.learner, Learner(notebook.learner))
        if notebook.problem:
            learner.open["all"] = f"{notebook.path} could not be graded"
        for name, result in notebook.exercises.items():
            why = ""
            if first := where.get((learner.name, name)):
                why = f"{name} is in {first} and in {notebook.path}"
            elif result.state is ExerciseState.NOT_JUDGED:
                why = f"{name} was not judged"
            if why:
                learner.open[name.partition(".")[0]] = learner.open["all"] = why
            where[learner.name, name] = notebook.path
            learner.marks[name] = (result.points, result.of)
        missing += ((learner, name, of) for name, of in notebook.missing.items())
    for learner, name, of in missing:
        learner.marks.setdefault(name, (0, of))
    return [found[name] for name in sorted(found)]
