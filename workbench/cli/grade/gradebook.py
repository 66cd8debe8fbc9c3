"""Marks go into nbgrader's gradebook, by nbgrader's own API: ``nbgrader export`` and its pages show them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.cli.grade.results import ExerciseState, NotebookResult
from workbench.common.extras import need
from workbench.errors import LaunchError


class Gradebook:
    """Of a course folder.

    Args:
        course: with ``gradebook.db`` and ``submitted/LEARNER/ASSIGNMENT/``.
        paths: the notebooks that will be graded.

    Raises:
        LaunchError: nbgrader or a gradebook is missing, or a notebook is elsewhere.
    """

    def __init__(self, course: str, paths: Sequence[str]) -> None:
        try:
            need("workbench grade --nbgrader", "nbgrader", install="pip install nbgrader")
        except ModuleNotFoundError as error:
            raise LaunchError(str(error)) from None
        self._file = Path(course).absolute() / "gradebook.db"
        self._submitted = self._file.with_name("submitted")
        if not self._file.is_file():
            raise LaunchError(
                f"{self._file} is not there: in the course's folder, nbgrader generate_assignment makes it."
            )
        for path in paths:
            self._place(path)

    def _place(self, path: str) -> tuple[str, str, str]:
        file = Path(path).absolute()
        parts = file.relative_to(self._submitted).parts if file.is_relative_to(self._submitted) else ()
        if len(parts) != 3:
            raise LaunchError(
                f"{path} is not {self._submitted}/LEARNER/ASSIGNMENT/NOTEBOOK: nbgrader collect puts it there."
            )
        return parts[0], parts[1], file.stem

    def add(self, notebooks: Sequence[NotebookResult]) -> Iterator[str]:
        """Write the marks; yields a line for each that the gradebook does not take.

        Args:
            notebooks: graded. One that was graded before gets its new marks; what a person has written stays.
        """
        from nbgrader.api import Gradebook, MissingEntry

        with warnings.catch_warnings(), Gradebook(f"sqlite:///{self._file}") as book:
            warnings.simplefilter("ignore")  # SQLAlchemy's, about nbgrader's own code
            for notebook in notebooks:
                learner, assignment, name = self._place(notebook.path)
                marks = {
                    one.name: None if one.state is ExerciseState.NOT_JUDGED else one.points
                    for one in notebook.exercises.values()
                }
                try:
                    time = Path(notebook.path).with_name("timestamp.txt")
                    when = {"timestamp": time.read_text().strip()} if time.is_file() else {}
                    book.find_assignment(assignment)
                    book.update_or_create_student(learner)
                    book.update_or_create_submission(assignment, learner, **when)
                    for exercise, points in {**marks, **dict.fromkeys(notebook.missing, 0)}.items():
                        cell = f"{exercise.replace('.', '-')}-check"
                        grade = book.find_grade(cell, name, assignment, learner)
                        grade.auto_score = points
                        grade.needs_manual_grade = points is None or grade.manual_score is not None
                    book.db.commit()
                except MissingEntry as error:
                    book.db.rollback()
                    yield f"{notebook.path}: {error}: was it released by nbgrader generate_assignment from exercises/?"
