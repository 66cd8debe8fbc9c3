"""The round trip with nbgrader itself: release, fetch, submit, collect, grade, export.

nbgrader brings a second JupyterLab's extensions along, so it is installed into an environment of its own, which has the
packages of this one as well.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import nbformat
import pytest

from workbench.cli.grade import gradebook
from workbench.errors import LaunchError

ROOT = Path(__file__).resolve().parents[3]
ANSWER = "03-reduce_scatter"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with nbgrader."""
    folder = tmp_path_factory.mktemp("nbgrader")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    pip = [uv, "pip", "install", "--python"] if uv.exists() else [sys.executable, "-m", "pip", "--python"]
    words = [*pip, python, *([] if uv.exists() else ["install"]), "nbgrader==0.9.6"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"nbgrader cannot be installed: {done.stderr.strip()[-300:]}")
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    return folder / "bin"


@pytest.mark.process
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_course_goes_round(tools: Path, tmp_path: Path) -> None:
    """What is released is the exercises' text. Two learners' marks are in nbgrader's export, also if graded again."""
    course, learner = tmp_path / "course", tmp_path / "kim"
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    exchange.chmod(0o777)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(folder: Path, *words: str, code: int = 0) -> str:
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    for folder in (course, learner):
        folder.mkdir()
        config = f"c = get_config()\nc.CourseDirectory.course_id = 'ddl'\nc.Exchange.root = {str(exchange)!r}\n"
        (folder / "nbgrader_config.py").write_text(config)
    source = course / "source" / "03" / "03_ring_allreduce.ipynb"
    source.parent.mkdir(parents=True)
    shutil.copy(ROOT / "exercises" / source.name, source)
    run(course, "nbgrader", "generate_assignment", "03")
    released = nbformat.read(course / "release" / "03" / source.name, 4)
    assert [cell.source for cell in released.cells] == [cell.source for cell in nbformat.read(source, 4).cells]
    run(course, "nbgrader", "release_assignment", "03")
    run(learner, "nbgrader", "fetch_assignment", "03")
    mine = learner / "03" / source.name
    fetched, solved = nbformat.read(mine, 4), nbformat.read(ROOT / "solutions" / source.name, 4)
    (answer,) = (cell.source for cell in solved.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == ANSWER)
    for cell in fetched.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == ANSWER:
            cell.source = answer
    nbformat.write(fetched, mine)
    run(learner, "nbgrader", "submit", "03")
    run(course, "nbgrader", "collect", "03")
    (name,) = (each.name for each in (course / "submitted").iterdir())
    shutil.copytree(course / "submitted" / name, course / "submitted" / "Jürgen W")
    shutil.copy(ROOT / "solutions" / source.name, course / "submitted" / "Jürgen W" / "03")
    grade = ("python", "-m", "workbench.cli.main", "grade", "--as-root", "submitted", "--nbgrader", ".")
    for _ in range(2):
        run(course, *grade)
        run(course, "nbgrader", "export")
        with (course / "grades.csv").open() as file:
            marks = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in csv.DictReader(file)}
        assert marks == {name: (1.0, 4.0), "Jürgen W": (4.0, 4.0)}
    (course / "submitted" / name / "03").rename(course / "submitted" / name / "04")
    assert "No such assignment: 04" in run(course, *grade, code=1)


def test_without_nbgrader_or_its_gradebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what is missing, before the work; and that a notebook is nobody's."""
    for there, text in [(False, "pip install nbgrader"), (True, "generate_assignment makes it")]:
        monkeypatch.setattr(gradebook, "has", lambda module, there=there: there)
        with pytest.raises(LaunchError, match=text):
            gradebook.check(str(tmp_path), [])
    (tmp_path / "gradebook.db").touch()
    with pytest.raises(LaunchError, match="LEARNER/ASSIGNMENT/NOTEBOOK"):
        gradebook.check(str(tmp_path), [str(tmp_path / "submitted" / "kim" / "03.ipynb")])
