"""A rehearsal plays notebooks as several learners, says what fails and where, and leaves nothing running."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from workbench.course.classroom import __main__ as command
from workbench.course.classroom import rehearsal
from workbench.course.classroom.rehearsal import Learner, Rehearsal, marked
from workbench.errors import LaunchError

Written = Callable[..., None]
IMPORT = "from workbench.course.exercise import check, exercise"
SOLVED = [
    IMPORT,
    '@exercise("02.tree_broadcast")\ndef tree_broadcast(comm, value, root): ...',
    'check("02.tree_broadcast")',
]


@pytest.fixture
def lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Writes a lesson with these cells, and its exercises, where a rehearsal looks for them."""
    monkeypatch.setattr(rehearsal, "built", lambda: tmp_path)

    def write(name: str, cells: list[str], exercises: list[str]) -> None:
        for kind, sources in (("notebooks", cells), ("exercises", exercises)):
            (tmp_path / kind).mkdir(exist_ok=True)
            notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in sources])
            nbformat.write(notebook, tmp_path / kind / f"{name}.ipynb")

    return write


@pytest.mark.process
def test_what_fails_is_named_with_learner_and_cell(lessons: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' verdicts count. No process is left."""
    monkeypatch.setattr(rehearsal, "_ALL_BEGIN_S", 0.1)
    second = "import os; assert not os.environ['WORKBENCH_LEARNER'].endswith('/2'), 'the second has failed'"
    lessons("02_small", ["1 + 1", second], SOLVED)
    played = Rehearsal(2, 2.0, "02")
    played.run()
    lines = list(played.report())
    assert lines[0].startswith("2 learners of 2, lessons 02-02")
    assert lines[1].startswith("first verdict after an exercise is opened: median ")
    assert lines[2].startswith("memory of a learner: median ")
    assert lines[3].startswith("this machine carries ")
    assert lines[4:] == [
        "failed: 1",
        "  learner 2, 02_small, cell 1: AssertionError: the second has failed",
        "hangs: 0",
    ]
    assert played.failed()
    assert all(each.done and each.first_verdict_s and each.cpu_s and each.bytes for each in played.learners)
    assert not list(marked(played._mark))


@pytest.mark.thorough
@pytest.mark.process
def test_a_cell_that_does_not_end_is_named(lessons: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a hang, and the next notebook is played."""
    monkeypatch.setattr(rehearsal, "_HANG_S", 20.0)
    lessons("02_small", ["import time; time.sleep(600)"], SOLVED)
    played = Rehearsal(1, 2.0, "02")
    played.run()
    assert list(played.report())[-3:] == ["failed: 0", "hangs: 1", "  learner 1, 02_small, cell 0"]
    assert played.learners[0].first_verdict_s


@pytest.mark.thorough
@pytest.mark.process
def test_an_exercise_that_was_not_passed_is_a_failure(lessons: Written) -> None:
    """Though no cell has raised: here nobody calls check."""
    lessons("02_small", ["1"], SOLVED[:2])
    played = Rehearsal(1, 2.0, "02")
    played.run()
    assert "  learner 1, 02_small: 02.tree_broadcast was not passed" in list(played.report())
    assert played.failed()


@pytest.mark.thorough
@pytest.mark.process
def test_learners_are_not_added_where_memory_runs_out(lessons: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and how many it was."""
    monkeypatch.setattr(rehearsal, "_ALL_BEGIN_S", 0.1)
    monkeypatch.setattr(rehearsal, "free_bytes", lambda: rehearsal.reserve_bytes() + (1 << 29))
    lessons("02_small", ["1"], SOLVED)
    played = Rehearsal(5, 2.0, "02")
    played.run()
    lines = list(played.report())
    assert lines[0].startswith("1 learner of 5")
    assert lines[1].startswith("no more learners, because of memory: ")
    assert played.failed()


@pytest.mark.process
def test_time_that_is_over_ends_everybody(lessons: Written) -> None:
    """With the cell where each was; nothing is left."""
    lessons("02_small", ["import time; time.sleep(600)"], SOLVED)
    played = Rehearsal(1, 0.1, "02")
    played.run()
    assert "  learner 1: the time was over at 02_small, cell 0" in list(played.report())
    assert not list(marked(played._mark))


@pytest.mark.parametrize(("waits_s", "carries"), [(1.0, "10 learners: "), (10.0, "3 learners: ")])
def test_what_this_machine_carries_is_the_smallest_of_memory_cores_and_waits(
    waits_s: float, carries: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the largest learner, by the cores of a class that checks at once, and by how long they have waited here."""
    monkeypatch.setattr(rehearsal, "free_bytes", lambda: rehearsal.reserve_bytes() + 10_000)
    monkeypatch.setattr(rehearsal, "paid_for", lambda: 2)
    played = Rehearsal(2, 1.0, "02")
    for number, used in ((1, 900), (2, 1000)):
        first_s = number * waits_s
        played.learners.append(Learner(number, Path(), done=True, bytes=used, cpu_s=4.0, first_verdict_s=first_s))
    lines = list(played.report())
    verdicts = f"median {1.5 * waits_s:.1f} s, worst {2 * waits_s:.1f} s (learner 2)"
    assert lines[1] == f"first verdict after an exercise is opened: {verdicts}"
    assert lines[3].startswith(f"this machine carries {carries}its memory 10, its cores 15 ")


def test_words_that_make_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    """Are errors: no learner, and no such lesson."""
    with pytest.raises(LaunchError, match="at least one learner"):
        Rehearsal(-1, 1.0, "02")
    for minutes in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LaunchError, match="--minutes"):
            Rehearsal(1, minutes, "02")
    assert command.main(["--rehearse", "2", "--lessons", "77"]) == 1
    assert "--lessons 77: there are 00-" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.course
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_two_learners_play_the_first_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    """With engines, as they are delivered: nothing fails, nothing hangs, all exercises are passed."""
    monkeypatch.setenv("WORKBENCH_FORK", "1")
    played = Rehearsal(2, 9.0, "00-04")
    played.run()
    assert not played.failed(), list(played.report())
