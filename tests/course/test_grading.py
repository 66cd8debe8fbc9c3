"""Grading: what learners hand in gets its marks, whatever its cells do, in time, and nothing is left running."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from submissions import NAME, RIGHT, living, write

from workbench.cli.grade.grade import Grading, How
from workbench.cli.grade.results import ExerciseState, NotebookResult, as_csv, table
from workbench.cli.grade.submissions import notebooks, read
from workbench.course import build
from workbench.course.grading.cells import exercises_in
from workbench.course.tasks import names, task

pytestmark = pytest.mark.timeout(300)  # on a busy machine, too

LESSON = next((build.ROOT / "lessons").glob("03_*.py"))
SETUP = """import os, sys, time
import numpy as np
from workbench.course.exercise import catch_up, check, exercise, hint, show"""
SOLVED = {name: task(name).cell(solved=True) for name in ("02.shift_right", "03.reduce_scatter", "03.ring_allreduce")}
OF_LESSON = [name for name in names() if name.startswith("03.")]
FOREVER = '@exercise("{}")\ndef f(*arguments):\n    while True: pass'


def built(path: Path, kind: str, change: Callable[[list[Any]], None] = lambda cells: None) -> str:
    """Lesson 03's notebook, as it is built, and changed."""
    import nbformat

    notebook = build.read(LESSON, kind)
    change(notebook.cells)
    nbformat.write(notebook, path)
    return str(path)


def graded(path: str, deadline_s: float = 250.0, step_s: float = 60.0) -> NotebookResult:
    """The sheet of one notebook."""
    return Grading(read(path), How(deadline_s, step_s)).run()


def states(sheet: NotebookResult) -> dict[str, str]:
    """Exercise → its mark."""
    return {name: mark.state.value for name, mark in sheet.exercises.items()}


# --- what is handed in --------------------------------------------------------------------------------


def test_a_solved_notebook_gets_full_points(tmp_path: Path) -> None:
    """The solutions of a lesson, engines and all, pass; cells with checks and pictures are harmless."""
    sheet = graded(built(tmp_path / "kim.ipynb", "solutions"))
    assert states(sheet) == dict.fromkeys(OF_LESSON, "✓")
    points = {name: task(name).points for name in OF_LESSON}
    assert {name: result.points for name, result in sheet.exercises.items()} == points
    assert (sheet.notes, sheet.problem, sheet.complete) == ({}, "", True)
    assert list(tmp_path.iterdir()) == [tmp_path / "kim.ipynb"], "grading leaves nothing beside a notebook"


WITHOUT, NAMED = [name for name in names() if task(name).asks_cause][:2]
HANDED_IN = {  # exercise → a cell, its mark, how the text of that begins
    "03.ring_allreduce": (
        '@exercise("03.ring_allreduce")\ndef mine(comm, x):\n    return x',
        "✗",
        "right: n = 2: rank 0, chunk 0: your result = rank 0; rank 1 missing",
    ),
    "03.reduce_scatter": (SOLVED["03.reduce_scatter"].replace("):", ")", 1), "✗", "SyntaxError"),
    "02.tree_broadcast": (task("02.tree_broadcast").cell(solved=False), "–", ""),
    "02.shift_right": ("1", "–", ""),  # caught up in the first cell
    "04.stale": ("1", "–", "no cell defines it"),  # deleted: it counts, by its check
    "05.weighted_mean": (
        "from workbench.course.tasks import t05_sharding as t\nexercise('05.weighted_mean')(t.weighted_mean)",
        "✗",
        "",
    ),
    "04.average_gradients": (f"%%px --local\n{task('04.average_gradients').cell(solved=True)}", "✓", ""),
    "04.sgd_step": (
        f"%matplotlib inline\n!exit 1\nx = %who\n{task('04.sgd_step').cell(solved=True)}\ndisplay(x)",
        "✓",
        "",
    ),
    "08.ring_time": (f"%%time\n{task('08.ring_time').cell(solved=True)}", "✓", ""),
    WITHOUT: (task(WITHOUT).cell(solved=True), "✗", "cause: "),
    NAMED: (
        "\n".join([task(NAMED).cell(solved=True), *(f'cause("{NAMED}", "{letter}")' for letter in "abcd")]),
        "✓",
        "",
    ),
}


def test_how_an_answer_is_handed_in(tmp_path: Path) -> None:
    """One is wrong, the cell of one no Python, one blank, one deleted; magics around an answer do no harm.

    1. Catching up and importing the solution give no points.
    2. A repaired card alone is not all of it; wrong guesses of its cause before the right one do not matter.
    3. Who deletes an exercise with its check has a row without points: full marks are those of the lesson.
    """
    first = f"{SETUP}\nfrom workbench.course.cards import cause\ncatch_up('03')"
    checks = [f"check({name!r})" for name in HANDED_IN]
    sheet = graded(write(tmp_path / "kim.ipynb", first, *(cell for cell, *_ in HANDED_IN.values()), *checks))
    assert states(sheet) == {name: mark for name, (_, mark, _) in HANDED_IN.items()}, sheet
    for name, (_, _, words) in HANDED_IN.items():
        assert sheet.exercises[name].text.startswith(words), name
    assert list(sheet.notes) == [3]
    cut_out = {name for name in names() if name[:2] in {one[:2] for one in HANDED_IN}} - {*HANDED_IN}
    assert sheet.missing == {name: task(name).points for name in cut_out}
    told = "\n".join(table(sheet))
    assert "not in it: " in told
    assert f"05.shard ({task('05.shard').points} point" in told
    lines = [line.split(",")[1:5] for line in as_csv([sheet]).splitlines()]
    assert ["05.shard", "not in it", "0", str(task("05.shard").points)] in lines


# --- what cells may do --------------------------------------------------------------------------------

BAD_CELLS = [
    "for i in range(400):\n    open(f'f{i}', 'wb').write(bytes(1 << 20))\n    time.sleep(0.02)",
    "while True: pass",
    "sys.exit(3)",
    "os._exit(0)",
    "os.kill(os.getpid(), 9)",
    "for i in range(20_000): print('x' * 1000)",
    "1 / 0",
    "input('name? ')",
    "import threading\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
    "import subprocess\nsleeper = subprocess.Popen(['sleep', '987654'], start_new_session=True)",
    "child = os.fork()",
    "class Odd(Exception):\n    def __str__(self): raise Odd\nraise Odd",
    "os.chdir('/'); sys.stdout = sys.stderr = None",
    "x = (",
    "%%px\nhvd.init()",
    "from workbench import cluster\nengines = cluster.up(n=4)\nengines.view.push({'a': 1})",
    "os.kill(os.getpid(), 19)",
]


@pytest.mark.slow
def test_bad_cells_cost_themselves_only(tmp_path: Path, new_children: Callable[[], list[psutil.Process]]) -> None:
    """Loops, exits, crashes, forks, megabytes: the exercise after all of them is judged, and no process is left.

    So do files that are each below the limit of a file, and together above that of the disk; and SIGSTOP.
    """
    path = write(tmp_path / "kim.ipynb", SETUP, *BAD_CELLS, RIGHT)
    sheet = Grading(read(path), How(250.0, 6.0, limits={"disk": 32 << 20})).run()
    assert states(sheet) == {NAME: "✓"}, sheet
    told = {BAD_CELLS[number - 2]: text for number, text in sheet.notes.items()}
    assert told["while True: pass"] == "did not end within 6 s"
    assert told["sys.exit(3)"].startswith("SystemExit: 3")
    for cell in ("os._exit(0)", "os.kill(os.getpid(), 9)"):
        assert told[cell].startswith("ended the whole process")
    assert told["1 / 0"].startswith("ZeroDivisionError")
    assert told[BAD_CELLS[0]] == "wrote more than 32 MiB"
    assert told[BAD_CELLS[-1]] == "did not end within 6 s"
    assert len(told) == 10, told  # these, input(), the odd exception and the typing error
    assert new_children() == []
    assert not living("987654")


@pytest.mark.slow
def test_a_notebook_has_a_deadline(tmp_path: Path) -> None:
    """Thirty endless cells end at the notebook's deadline, and what was not judged is not called wrong."""
    cells = [SETUP, *["time.sleep(1000)"] * 30, FOREVER.format("03.ring_allreduce")]
    begun = time.monotonic()
    sheet = graded(write(tmp_path / "kim.ipynb", *cells), 12, 3)
    assert time.monotonic() - begun < 60, "and not the 90 of its cells"
    assert sheet.exercises["03.ring_allreduce"].state is ExerciseState.NOT_JUDGED
    assert "reached its limit of 12 s" in sheet.exercises["03.ring_allreduce"].text
    assert not sheet.complete


# --- what cannot be graded ----------------------------------------------------------------------------


NO_NOTEBOOKS: list[tuple[bytes | None, str]] = [
    (None, "No such file"),
    (b"", "not JSON"),
    (b'{"cells": [', "not JSON"),
    (b"[" * 200_000, "maximum recursion depth"),
    (b"0" * (33 << 20), "larger than 32 MiB"),
    (b"\xff\xfe\x00", "not JSON"),
    (b"[1]", "no cells"),
    (b'{"worksheets": []}', "no cells"),
    (b'{"cells": [3, {"cell_type": "code"}, {"cell_type": "code", "source": [1]}]}', "no exercise"),
    (b'{"cells": [{"cell_type": "code", "source": "@exercise(\\"99.none\\")"}]}', "no exercise"),
]


def test_what_is_no_notebook_is_said(tmp_path: Path) -> None:
    """A file that is missing, broken or without exercises has one line that says so."""
    path = tmp_path / "kim.ipynb"
    for text, words in NO_NOTEBOOKS:
        if text is not None:
            path.write_bytes(text)
        sheet = graded(str(path))
        assert words in sheet.problem, (text or b"")[:80]
        assert sheet.exercises == {}


def test_a_problem_reaches_the_sheet(tmp_path: Path) -> None:
    """A folder without notebooks has a line, and no marks."""
    sheet = graded(str(tmp_path))
    assert sheet.problem == "there is no notebook in this folder"
    assert not sheet.complete


def test_a_process_that_cannot_start_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said last is in the line."""
    (tmp_path / "numpy.py").write_text("raise ImportError('broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = write(tmp_path / "kim.ipynb", SETUP, SOLVED["03.ring_allreduce"])
    assert "ImportError: broken installation" in graded(path).problem


def test_folders_stand_for_their_notebooks(tmp_path: Path) -> None:
    """Those below count too, checkpoints do not, and nothing comes twice."""
    for name in ("b/x.ipynb", "a.ipynb", ".ipynb_checkpoints/a.ipynb", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    expected = [str(tmp_path / "a.ipynb"), str(tmp_path / "b" / "x.ipynb")]
    assert notebooks([str(tmp_path), expected[0]]) == expected
    (tmp_path / "empty").mkdir()
    assert notebooks([str(tmp_path / "empty"), "no-such"]) == [str(tmp_path / "empty"), "no-such"]


@pytest.mark.parametrize("sources", [['@exercise("03.ring_allreduce")'], ["check('03.ring_allreduce')\n# exercise"]])
def test_exercises_are_found_by_reading(sources: Sequence[str]) -> None:
    """By their definition or by their check, without running anything."""
    assert exercises_in(sources, ["03.ring_allreduce"]) == ["03.ring_allreduce"]
