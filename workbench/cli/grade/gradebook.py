"""Marks go into nbgrader's gradebook, by nbgrader's own API: ``nbgrader export`` and its pages show them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.cli.grade.results import ExerciseState, NotebookResult
from workbench.common.extras import has
from workbench.errors import LaunchError


def check(course: str, paths: Sequence[str]) -> None:
    """Raise a LaunchError if nbgrader or the gradebook is missing, or a notebook is of no learner's."""
    if not has("nbgrader"):
        raise LaunchError("workbench grade --nbgrader needs nbgrader, in this Python: pip install nbgrader")
    if not Path(course, "gradebook.db").is_file():
        raise LaunchError(f"{course} has no gradebook.db: nbgrader generate_assignment makes it there.")
    for path in paths:
        if len(_place(course, path)) != 3:
            raise LaunchError(f"{path} is not {course}/submitted/LEARNER/ASSIGNMENT/NOTEBOOK, as of nbgrader collect.")


def _place(course: str, path: str) -> tuple[str, ...]:
    submitted, file = Path(course).absolute() / "submitted", Path(path).absolute()
    return file.relative_to(submitted).parts if file.is_relative_to(submitted) else ()


def add(course: str, notebooks: Sequence[NotebookResult]) -> Iterator[str]:
    """Write the marks; yields a line for each notebook that is not taken. Points that a person has written stay."""
    from nbgrader.api import Gradebook, InvalidEntry, MissingEntry
    from sqlalchemy.exc import SQLAlchemyError

    with warnings.catch_warnings(), Gradebook(f"sqlite:///{Path(course, 'gradebook.db').absolute()}") as book:
        warnings.simplefilter("ignore")  # SQLAlchemy's, about nbgrader's own code
        for notebook in notebooks:
            learner, assignment, file = _place(course, notebook.path)
            time = Path(notebook.path).with_name("timestamp.txt")
            when = {"timestamp": time.read_text().strip()} if time.is_file() else {}
            marks = {name: one.points for name, one in notebook.exercises.items()} | dict.fromkeys(notebook.missing, 0)
            open_ = [n for n, one in notebook.exercises.items() if one.state is ExerciseState.NOT_JUDGED]
            try:
                book.find_assignment(assignment)
                book.update_or_create_student(learner)
                book.update_or_create_submission(assignment, learner, **when)
                for name, points in marks.items():
                    cell = f"{name.replace('.', '-')}-check"
                    grade = book.find_grade(cell, Path(file).stem, assignment, learner)
                    grade.auto_score = None if name in open_ else points
                    grade.needs_manual_grade = name in open_ or grade.manual_score is not None
                book.db.commit()
            except (MissingEntry, InvalidEntry, SQLAlchemyError) as error:
                book.db.rollback()
                yield f"{notebook.path}: {error}. Was it released from exercises/ by nbgrader generate_assignment?"
