"""The notebooks are what the lessons say, and every output is what it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from workbench.course.build import ROOT, lessons, read

LESSONS = lessons([])
SANITIZE = Path(__file__).with_name("sanitize.cfg")


def committed(lesson: Path) -> Path:
    """The notebook in the repository."""
    return ROOT / "notebooks" / f"{lesson.stem}.ipynb"


@pytest.mark.course
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_notebook_is_built_from_its_lesson(lesson: Path) -> None:
    """The committed notebook has the cells, sources and tags of its lesson (else: make lessons)."""
    wanted, found = read(lesson), nbformat.read(committed(lesson), as_version=4)
    assert [(c.cell_type, c.source, c.metadata.get("tags", [])) for c in found.cells] == [
        (c.cell_type, c.source, c.metadata.get("tags", [])) for c in wanted.cells
    ]


@pytest.mark.course
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_every_code_cell_was_executed(lesson: Path) -> None:
    """Counts run 1, 2, 3 …: nbval does not compare a cell without a count, and lets its errors pass."""
    found = nbformat.read(committed(lesson), as_version=4)
    counts = [cell.execution_count for cell in found.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))


def run_nbval(notebook: Path, ipython: Path) -> subprocess.CompletedProcess[str]:
    """Strict nbval in a process of its own, with its own folder for cluster files."""
    command = [sys.executable, "-m", "pytest", "--nbval", str(notebook), f"--nbval-sanitize-with={SANITIZE}"]
    command += ["--nbval-cell-timeout=120", "-q", "-p", "no:cacheprovider", "--timeout=240", "-c", os.devnull]
    env = {**os.environ, "IPYTHONDIR": str(ipython), "IPP_NONINTERACTIVE": "1"}
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=270, check=False)


@pytest.mark.course
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_outputs_are_what_they_were(lesson: Path, tmp_path: Path) -> None:
    """Strict nbval: every output of a fresh run equals the committed one, up to the sanitised figures."""
    done = run_nbval(committed(lesson), tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    cells = sum(cell.cell_type == "code" for cell in nbformat.read(committed(lesson), as_version=4).cells)
    assert f"{cells} passed" in done.stdout


@pytest.mark.course
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    """The check can fail: text that differs from the stored output by one letter is a failure."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print('right')", execution_count=1)])
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", name="stdout", text="wrong\n")]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = tmp_path / "wrong.ipynb"
    nbformat.write(notebook, path)
    done = run_nbval(path, tmp_path)
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout
