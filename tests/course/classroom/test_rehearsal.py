"""A rehearsal plays lessons through a real hub, says what the machine carries, what fails, and what held."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from learners_python import MADE, learners_python

from workbench.cli.class_server.place import Place
from workbench.course.classroom import hostile
from workbench.course.classroom.rehearsal import Rehearsal, Report, chosen, nine_of_ten, solved
from workbench.errors import LaunchError


def test_the_machine_carries_what_it_was_measured_with() -> None:
    """The largest number of which nine of ten had a verdict in ten seconds; who had none has waited for ever."""
    report = Report(20, [3.0, 5.0])
    report.verdicts = {4: [1.0, 2.0, 3.0, 4.0], 8: [9.0] * 7 + [30.0], 10: [9.0] * 9 + [None], 20: [11.0] * 20}
    assert report.carries == 10
    lines = list(report.lines())
    assert lines[0] == "2 learners of 20 signed in within 10 s: JupyterLab after 4 s in the median, 5 s the last"
    assert lines[3] == "first verdict, 10 at once: median 9.0 s, nine of ten 9.0 s, the last 9.0 s, 1 had none"
    assert lines[5:] == ["this machine carries 10 learners: nine of ten within 10 s", "failed: 0", "hangs: 0"]
    report.verdicts[20] = [8.0] * 20
    assert "this machine carries 20 learners or more: nine of ten within 10 s" in report.lines()
    assert nine_of_ten([]) == nine_of_ten([1.0] * 8 + [None] * 2) == float("inf")


def test_what_was_broken_is_shown_with_what_it_told() -> None:
    """A kernel that died has hurt nobody else; anything that is not told to be held counts as broken."""
    report = Report(2, attacks={"takes 40 GB": ["the kernel has died"], "kills others": ["held: x", "NameError: y"]})
    assert list(report.lines())[2:] == [
        "hostile, takes 40 GB: held 1 of 1",
        "hostile, kills others: held 1 of 2",
        "  kills others: NameError: y",
    ]


def test_an_attack_that_succeeds_says_so(tmp_path: Path) -> None:
    """The cells themselves are tried where nothing is kept from them: another's file that can be read is told."""
    (tmp_path / "learners" / "ada").mkdir(parents=True)
    (tmp_path / "learners" / "alan").mkdir()
    (tmp_path / "class.json").write_text("the password")
    cell = hostile.cell("reads others", []).replace("for pid in others():", "for pid in ():")
    told = subprocess.run(
        [sys.executable, "-c", cell], env={"HOME": str(tmp_path / "learners" / "ada")}, capture_output=True, text=True
    )
    assert told.stdout.startswith("BROKEN: nobody else can be read: ")
    assert not hostile.held(told.stdout)


def test_lessons_are_chosen_with_their_exercises_and_solved() -> None:
    """Parts and ranges; one that does not exist is an error with those that do."""
    assert [str(each) for each in chosen("00,02")] == [
        "notebooks/00_quickstart.ipynb",
        "notebooks/02_collectives_by_hand.ipynb",
        "exercises/02_collectives_by_hand.ipynb",
    ]
    cells = [source for source, _ in solved(Path("exercises/02_collectives_by_hand.ipynb"))]
    assert not any("NotImplementedError" in source for source in cells)
    with pytest.raises(LaunchError, match="--lessons 77: there are 00-"):
        list(chosen("00,77"))
    with pytest.raises(LaunchError, match="--minutes 0: a rehearsal takes some time"):
        Rehearsal(Place(Path("x")), "02", 0.0, False, print)


@pytest.fixture
def folder() -> Iterator[Path]:
    """For a class; nothing of it is left."""
    path = Path(f"/tmp/wb-rehearsal-{MADE}")
    yield path
    subprocess.run(["rm", "-r", str(path)], check=False)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(500)
def test_a_class_of_three_plays_a_lesson_beside_an_attacker(folder: Path) -> None:
    """With engines: nothing fails, nothing hangs, every attack is held, and the class is gone."""
    words = ("--learners", "3", "--lessons", "02", "--minutes", "5", "--hostile", "--disk", "100", "--memory", "1500")
    with learners_python() as python:
        command = [str(python), "-m", "workbench.cli.main", "class", "rehearse", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("first verdict, 3 at once: median .* s, nine of ten .* s", done.stdout)
    assert "lessons 02: 2 learners at once" in done.stdout
    assert done.stdout.count("held 1 of 1") == len(hostile.CELLS)
    assert not folder.exists()
