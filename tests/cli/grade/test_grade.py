"""``workbench grade``: its options, its files, its exit code."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

import workbench
from workbench.cli import main as cli
from workbench.cli.grade import grade
from workbench.cli.grade.results import (
    ExerciseResult,
    ExerciseState,
    NotebookResult,
    as_csv,
    as_junit,
    clean,
    summary,
    table,
)
from workbench.cli.grade.submissions import Submission
from workbench.errors import LaunchError

ODD = 'right: <&"> \x1b[31m\x00 \ud800 ]]> =1+1,\n    in "x"'
RESULTS = [
    NotebookResult(
        'a & "b".ipynb',
        {
            "03.a": ExerciseResult("03.a", 2, ExerciseState.PASSED, "", 0.25),
            "03.b": ExerciseResult("03.b", 1, ExerciseState.FAILED, clean(ODD), 1.0),
            "03.c": ExerciseResult("03.c", 1, ExerciseState.NOT_DONE, "no cell defines it"),
            "03.d": ExerciseResult("03.d", 3, ExerciseState.NOT_JUDGED, "not judged: too late"),
        },
        {7: "NameError: x\n    in x"},
    ),
    NotebookResult("broken.ipynb", problem="it is not JSON"),
]


def test_the_table_has_a_line_for_everything() -> None:
    """Marks, points, the first line of what is wrong, cells that did not end well, and a sum."""
    lines = [line for sheet in RESULTS for line in table(sheet)]
    assert lines[0] == 'a & "b".ipynb: 2 of 7 points'
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["✓", "03.a", "2/2"],
        ["✗", "03.b", "0/1"],
        ["–", "03.c", "0/1"],
        ["?", "03.d", "0/3"],
    ]
    assert lines[5].strip() == "code cell 7: NameError: x"
    assert lines[6] == "broken.ipynb: not graded: it is not JSON"
    assert not any("\x1b" in line for line in lines), "a learner's text does not colour the terminal"
    assert summary(RESULTS) == (
        "2 notebooks: 3 exercises judged, 1 passed; 1 exercise not judged in time; 1 notebook not graded"
    )


def test_csv_comes_back_as_it_was() -> None:
    """A line per exercise, one for a notebook that was not graded; any text survives."""
    lines = list(csv.DictReader(io.StringIO(as_csv(RESULTS))))
    assert [(line["file"], line["exercise"], line["state"], line["points"], line["of"]) for line in lines] == [
        ('a & "b".ipynb', "03.a", "passed", "2", "2"),
        ('a & "b".ipynb', "03.b", "failed", "0", "1"),
        ('a & "b".ipynb', "03.c", "not done", "0", "1"),
        ('a & "b".ipynb', "03.d", "not judged", "0", "3"),
        ("broken.ipynb", "", "not graded", "0", "0"),
    ]
    assert lines[1]["remark"] == 'right: <&"> ?[31m? ? ]]> =1+1, in "x"'
    as_csv(RESULTS).encode()


def test_junit_is_xml_with_a_suite_per_notebook() -> None:
    """Counts add up, and failures carry the whole text."""
    root = ElementTree.fromstring(as_junit(RESULTS).encode())
    first, second = root.findall("testsuite")
    numbers = [[int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")] for suite in root]
    assert numbers == [[4, 1, 1, 1], [1, 0, 1, 0]]
    assert first.attrib["name"] == 'a & "b".ipynb'
    failure = first.find("testcase/failure")
    assert failure is not None
    assert failure.text == clean(ODD)
    assert [case.attrib["time"] for case in first] == ["0.2", "1.0", "0.0", "0.0"]
    assert second.find("testcase/error") is not None


class Fake:
    """In the place of a real grading."""

    def __init__(self, submission: Submission, how: grade.How) -> None:
        self.path, self.seen = submission.path, (how.deadline_s, how.step_s)

    def run(self) -> NotebookResult:
        """A sheet by the file's name."""
        if "stop" in self.path:
            raise KeyboardInterrupt
        if "bad" in self.path:
            return NotebookResult(self.path, problem="it is not JSON")
        state = ExerciseState.NOT_JUDGED if "late" in self.path else ExerciseState.FAILED
        results = {"03.a": ExerciseResult("03.a", 1, state, f"{self.seen}")}
        return NotebookResult(self.path, results, unbounded="files" if self.path == "b" else "")


@pytest.mark.parametrize(
    ("files", "code"), [(["a", "b"], 0), (["a", "bad", "b"], 1), (["late"], 1), (["a", "stop", "b"], 130)]
)
def test_the_exit_code_says_whether_all_could_be_graded(
    files: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Marks do not matter. The others go on after a bad one, and the files hold what is known, also after Ctrl-C."""
    monkeypatch.setattr(grade, "Grading", Fake)
    monkeypatch.chdir(tmp_path)
    words = ["grade", "--as-root", *files, "--csv", "out.csv", "--junit", "out.xml"]
    words += ["--deadline", "90", "--step", "2.5"]
    assert cli.main(words) == code
    known = files[: files.index("stop")] if "stop" in files else files
    lines = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [line["file"] for line in lines] == known
    wanted = ["not run" if name == "bad" else "no: files" if name == "b" else "yes" for name in known]
    assert [line["confined"] for line in lines] == wanted
    assert len(ElementTree.parse(tmp_path / "out.xml").getroot()) == len(known)
    out, err = capsys.readouterr()
    assert all(name in out for name in known)
    assert ("Not confined: files." in err) == ("b" in known)
    assert ("not confined: files" in out) == ("b" in known)
    if files == ["a", "b"]:
        assert "(90.0, 2.5)" in out
        assert out.endswith("2 notebooks: 2 exercises judged, 0 passed\n")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_wrong_deadline_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It must be a number of seconds."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["grade", "a.ipynb", "--deadline", seconds])
    assert caught.value.code == 2
    assert "is not a number of seconds" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody waits for marks that cannot be kept."""
    monkeypatch.setattr(grade, "Grading", None)
    assert cli.main(["grade", "--as-root", "a.ipynb", "--csv", str(tmp_path / "no" / "out.csv")]) == 1
    assert "cannot be written: No such file" in capsys.readouterr().err
    with pytest.raises(LaunchError, match="Is a directory"):
        grade.writable(str(tmp_path))


@pytest.mark.timeout(120)
def test_the_real_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with one answer and one broken file: both are in the table, and the exit code tells of the second."""
    cell = 'from workbench.course.exercise import exercise\n@exercise("02.shift_right")\ndef f(comm, x):\n    return x'
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)]), tmp_path / "kim.ipynb")
    (tmp_path / "lee.ipynb").write_text("{")
    assert cli.main(["grade", "--as-root", str(tmp_path), "--csv", str(tmp_path / "out.csv")]) == 1
    out = capsys.readouterr().out
    assert f"{tmp_path / 'kim.ipynb'}: 0 of 1 points\n  ✗ 02.shift_right  0/1" in out
    assert f"{tmp_path / 'lee.ipynb'}: not graded: it is not JSON" in out
    assert out.endswith("2 notebooks: 1 exercise judged, 0 passed; 1 notebook not graded\n")


def test_without_the_course_it_says_so_and_all_else_works(tmp_path: Path) -> None:
    """A production install has no ``workbench/course``: `workbench grade` ends with one line, other parts import."""
    package = Path(workbench.__file__).parent
    shutil.copytree(package, tmp_path / "workbench", ignore=shutil.ignore_patterns("course", "__pycache__"))
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=50, env=env, cwd=tmp_path)

    graded = python("-m", "workbench.cli.main", "grade", "--as-root", "kim.ipynb", "--csv", "out.csv")
    assert (graded.returncode, graded.stdout) == (1, "")
    assert "workbench.course, which is not installed here" in graded.stderr
    assert not (tmp_path / "out.csv").exists()
    parts = "workbench, workbench.cluster, workbench.observe.player, workbench.observe.timeline_picture"
    used = python("-c", f"import {parts}; print(workbench.__file__); print(workbench.launch.site.read())")
    assert used.stdout.startswith(str(tmp_path)), used.stderr
