"""A learner's own copies of the lessons, which ``make lab`` prepares."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest

from workbench.cli import copies, learn
from workbench.course import progress_file
from workbench.course.build import ROOT

NAME = "notebooks/03_ring_allreduce.ipynb"


@pytest.fixture
def lessons(tmp_path: Path) -> Path:
    """Some of the lessons, as they are published."""
    for name in (NAME, "notebooks/steps/00_serial.py", "exercises/03_ring_allreduce.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        (tmp_path / name).chmod(0o444 if name.endswith(".py") else 0o644)
    return tmp_path


def test_copies_are_what_is_published_without_outputs(lessons: Path) -> None:
    """The same cells in the same folders below my/, nothing of what ran, and the published ones stay as they are."""
    before = {path: path.read_bytes() for path in lessons.rglob("*") if path.is_file()}
    assert sorted(copies.prepare(lessons)) == sorted(lessons / "my" / path.relative_to(lessons) for path in before)
    assert {path: path.read_bytes() for path in before} == before
    published, mine = (nbformat.read(folder / NAME, as_version=4) for folder in (lessons, lessons / "my"))
    nbformat.validate(mine)
    assert any(cell.get("outputs") for cell in published.cells)
    for cell, copied in zip(published.cells, mine.cells, strict=True):
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
        assert copied == cell
    step, copied = (folder / "notebooks/steps/00_serial.py" for folder in (lessons, lessons / "my"))
    assert (copied.read_text(), copied.stat().st_mode & 0o200) == (step.read_text(), 0o200)


def test_a_copy_is_never_overwritten(lessons: Path) -> None:
    """What a learner has written stays when the lesson changes; a new lesson is copied."""
    copies.prepare(lessons)
    (lessons / "my" / NAME).write_text("my answers")
    shutil.copy(lessons / NAME, lessons / "notebooks" / "04_new.ipynb")
    assert copies.prepare(lessons) == [lessons / "my" / "notebooks" / "04_new.ipynb"]
    assert (lessons / "my" / NAME).read_text() == "my answers"


def test_a_lesson_that_is_newer_than_its_copy(lessons: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named when its cells change, not when its outputs do or its copy is edited; until a new one is taken."""
    copies.main(lessons)
    published = nbformat.read(lessons / NAME, as_version=4)
    for cell in published.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbformat.write(published, lessons / NAME)
    (lessons / "my" / NAME).write_text("my answers")
    copies.main(lessons)
    assert copies.newer(lessons) == []
    assert "Newer" not in capsys.readouterr().out
    published.cells[0].source += " And more."
    nbformat.write(published, lessons / NAME)
    for _ in range(2):
        copies.main(lessons)
        assert "Newer than your copy: notebooks/03_ring_allreduce." in capsys.readouterr().out
    (lessons / "my" / NAME).unlink()
    copies.main(lessons)
    assert copies.newer(lessons) == []
    (lessons / "my" / "notebooks" / copies.STATES).write_text("damaged")
    copies.main(lessons)
    assert copies.newer(lessons) == []


def test_progress_comes_along_once(lessons: Path) -> None:
    """What was done before there were copies counts, and what is done in them is not replaced."""
    mine = lessons / "my" / "exercises" / progress_file.FILE
    progress_file.update(
        lessons / "exercises" / progress_file.FILE, lambda found: found.update(before={"passed": True})
    )
    copies.prepare(lessons)
    progress_file.update(mine, lambda found: found.update(after={"passed": True}))
    copies.prepare(lessons)
    assert set(progress_file.read(mine)) == {"before", "after"}
    assert json.loads((lessons / "my" / "notebooks" / progress_file.FILE).read_text()) == {}


@pytest.mark.parametrize(
    "text", ["<<<<<<< HEAD", "[]", '{"cells": 3}', "{}", '{"cells": [[]], "metadata": {}}', "\x80"]
)
def test_a_broken_notebook_is_named_and_the_others_are_copied(
    lessons: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Such as one with conflicts of a merge in it."""
    (lessons / "notebooks" / "00_broken.ipynb").write_bytes(text.encode("latin-1"))
    assert lessons / "my" / NAME in copies.prepare(lessons)
    assert "00_broken.ipynb is no notebook" in capsys.readouterr().err
    assert not (lessons / "my" / "notebooks" / "00_broken.ipynb").exists()


def test_a_folder_that_cannot_be_written_is_named(lessons: Path) -> None:
    """Here because a file has its name."""
    (lessons / "my").write_text("")
    with pytest.raises(SystemExit, match="my cannot be written: Not a directory"):
        copies.main(lessons)


def test_the_progress_file_is_that_of_the_exercises() -> None:
    """The command line does not import the course, so it has the name once more."""
    assert copies.PROGRESS == progress_file.FILE
    assert copies.KINDS == learn._KINDS
