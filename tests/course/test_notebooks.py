"""The notebooks are what the lessons say, and every output is what it was."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from changed import run_now
from fork_server import ForkServer
from thorough import once_more

from workbench.course.build import DIFFERS, KINDS, ROOT, SESSION, execute, lessons, read

LESSONS = lessons([])
SANITIZE = DIFFERS
# What lies there: test_notebooks_are_built_from_their_lessons holds that it is what the lessons give.
BUILT = [(kind, each) for each in LESSONS for kind in KINDS if (ROOT / kind / f"{each.stem}.ipynb").exists()]
RUN = [(kind, lesson) for kind, lesson in BUILT if kind != "exercises"]


def called(value: object) -> str:
    """A parameter's name in a test's."""
    return value.stem if isinstance(value, Path) else str(value)


def committed(lesson: Path, kind: str = "notebooks") -> Path:
    """The notebook in the repository."""
    return ROOT / kind / f"{lesson.stem}.ipynb"


def more_than_two(kind: str, lesson: Path) -> bool:
    """Does the notebook start more than two engines?"""
    starts = re.findall(r"cluster\.up\(n=(\d+)", committed(lesson, kind).read_text(encoding="utf-8"))
    return any(int(n) > 2 for n in starts)


GREEDY = [(kind, lesson) for kind, lesson in RUN if more_than_two(kind, lesson)]


def missing(notebook: Path) -> set[str]:
    """The frameworks that a notebook imports and nobody has installed (make setup EXTRAS=torch,lessons,dev)."""
    import nbformat

    text = "\n".join(cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code")
    wanted = re.findall(r"^(?:import |!.*python )(tensorflow|keras|jax|optax)(?:\b|_)", text, re.MULTILINE)
    return {name for name in wanted if importlib.util.find_spec(name) is None}


@pytest.mark.course
@pytest.mark.timeout(180)
def test_notebooks_are_built_from_their_lessons() -> None:
    """They have the cells, sources and metadata that the lessons give (else: make lessons); none has no lesson.

    Where outputs are, each cell ran, in order: nbval does not compare a cell without a count, and lets its errors pass.
    Exercises come without outputs, and no line of a solution is in them that stands in no notebook.
    """
    import nbformat

    texts: dict[str, list[str]] = {kind: [] for kind in KINDS}
    there = {(kind, path.stem) for kind in KINDS for path in (ROOT / kind).glob("*.ipynb")}
    for lesson in LESSONS:
        for kind in KINDS:
            wanted = read(lesson, kind)
            assert (wanted is not None) == ((kind, lesson.stem) in there), (kind, lesson.stem)
            there.discard((kind, lesson.stem))
            if wanted is None:
                continue
            found = nbformat.read(committed(lesson, kind), as_version=4)
            assert [(c.id, c.cell_type, c.source, c.metadata) for c in found.cells] == [
                (c.id, c.cell_type, c.source, c.metadata) for c in wanted.cells
            ], (kind, lesson.stem)
            code = [cell for cell in found.cells if cell.cell_type == "code"]
            texts[kind] += [line.strip() for cell in code for line in cell.source.splitlines()]
            counts = [cell.execution_count for cell in code]
            assert counts == ([None] * len(code) if kind == "exercises" else [*range(1, len(code) + 1)]), lesson.stem
            assert kind != "exercises" or not any(cell.outputs for cell in code), lesson.stem
    assert there == set()
    secret = {line for line in texts["solutions"] if len(line) > 30} - {*texts["notebooks"]}
    assert len(secret - {*texts["exercises"]}) > 50, "solutions are those lines that exercises lack"


@pytest.mark.course
def test_the_scripts_of_lesson_10_lie_beside_its_notebook() -> None:
    """Copies, made by `make lessons`: the folder works wherever it is put."""
    folders = ROOT / "lessons" / "steps", ROOT / "notebooks" / "steps"
    ours, theirs = (
        {path.name: path.read_text() for where in (folder, folder / "plain") for path in where.glob("*.py")}
        for folder in folders
    )
    assert len(ours) == 12
    assert theirs == ours


@pytest.mark.course
def test_the_session_lies_beside_its_notebook() -> None:
    """The scripts that lesson 22 starts are the examples, and need no other file."""
    ours, theirs = ROOT / "examples", ROOT / "notebooks" / "steps" / "session"
    assert {path.stem for path in theirs.glob("*.py")} == set(SESSION)
    assert all((ours / f"{name}.py").read_text() == (theirs / f"{name}.py").read_text() for name in SESSION)


@pytest.mark.course
def test_nano_lies_beside_its_notebook() -> None:
    """What lesson 21 builds is the example, and a copy is beside the notebook."""
    ours, theirs = (ROOT / folder / "steps" / "nano" / "nano.py" for folder in ("lessons", "notebooks"))
    assert theirs.read_text() == ours.read_text() == (ROOT / "examples" / "nano.py").read_text()
    assert not theirs.is_symlink()


# test_checks.py shows it for each exercise. Here: a check on engines, and most cells.
BLANKS = [each if each[1].stem.startswith("11") else once_more(*each) for each in BUILT if each[0] == "exercises"]


@pytest.mark.course
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("kind", "lesson"), BLANKS, ids=called)
def test_blank_exercises_are_told_politely(kind: str, lesson: Path, tmp_path: Path) -> None:
    """Run as it comes, every cell of a learner's notebook ends, without a traceback, and no exercise is green."""
    done = execute(read(lesson, kind), tmp_path, allow_errors=True)
    for cell in done.cells:
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            if output.output_type == "error":  # a cell that uses what is still blank: one line says so
                assert output.ename == "NotDoneError", output
                assert len(output.traceback) == 1
                assert "is not done yet" in output.traceback[0]
        if "check(" in cell.source:
            told = "".join(output.get("text", "") for output in cell.outputs)
            assert "not done yet" in told or "✗" in told, told
            assert "Traceback" not in told


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """Where nbval and kernels come from."""
    server = ForkServer()
    yield server
    server.close()


def run_nbval(
    forks: ForkServer, notebook: Path, ipython: Path, lax: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """Nbval in a process of its own, with its own folder for cluster files; strict, or looking at errors alone."""
    faulthandler.cancel_dump_traceback_later()  # it has a deadline; the stacks of who waits for it say nothing
    return forks.run("nbval", nbval_words(notebook, lax), nbval_environment(ipython, **env), ROOT, timeout_s=270)


def nbval_words(notebook: Path, lax: bool) -> list[str]:
    """Of pytest's command line."""
    words = ["--nbval-lax" if lax else "--nbval", str(notebook), f"--nbval-sanitize-with={SANITIZE}"]
    words += ["--nbval-cell-timeout=120", "-q", "-p", "no:cacheprovider", "--timeout=240", "-c", os.devnull]
    return [*words, "-p", "nbval", "-p", "pytest_timeout"]


def nbval_environment(ipython: Path, **env: str) -> dict[str, str]:
    """With this folder for cluster files; of pytest's plug-ins only those that are named."""
    ours = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "IPYTHONDIR": str(ipython), "IPP_NONINTERACTIVE": "1"}
    return {**os.environ, **ours, **env}


# Notebooks that a change concerns, and some. The code of the solutions is judged by test_checks.py.
LISTED = [each if each[0] == "notebooks" and run_now(each[1].stem[:2]) else once_more(*each) for each in RUN]


@pytest.mark.course
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "lesson"), LISTED, ids=called)
@pytest.mark.parametrize("times", [1, once_more(2)])
def test_outputs_are_what_they_were(kind: str, lesson: Path, times: int, forks: ForkServer, tmp_path: Path) -> None:
    """Strict nbval, also twice in a row: every output of a fresh run is the committed one, up to sanitised figures."""
    import nbformat

    notebook = committed(lesson, kind)
    if lacking := missing(notebook):
        pytest.skip(f"{', '.join(sorted(lacking))} not installed")
    cells = sum(cell.cell_type == "code" for cell in nbformat.read(notebook, as_version=4).cells)
    for _ in range(times):
        done = run_nbval(forks, notebook, tmp_path)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert f"{cells} passed" in done.stdout


@pytest.mark.course
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "lesson"), [once_more(*each) for each in GREEDY])
def test_two_engines_are_enough(kind: str, lesson: Path, forks: ForkServer, tmp_path: Path) -> None:
    """Where a site allows two engines, a notebook that asks for more runs without an error."""
    site = tmp_path / "workbench.toml"
    site.write_text("most_engines = 2\n")
    done = run_nbval(forks, committed(lesson, kind), tmp_path, lax=True, WORKBENCH_SITE=str(site))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


INTERRUPTED = """
import sys
from pathlib import Path
import nbformat
from workbench.course.build import execute
from workbench.launch.as_command import as_command
cell = nbformat.v4.new_code_cell("import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(50)")
sys.exit(as_command(lambda: execute(nbformat.v4.new_notebook(cells=[cell]), Path())))
"""


@pytest.mark.process
def test_ctrl_c_ends_a_notebook_with_its_exit_code(tmp_path: Path) -> None:
    """It is nbclient that takes the signal; ``workbench demo`` ends with 130 all the same."""
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 130
    assert "Interrupt" not in done.stderr


def test_every_solution_passes_in_its_notebook() -> None:
    """Where a learner would run it: with the notebook's imports, not with those of the task's file."""
    import nbformat

    for path in sorted((ROOT / "solutions").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            assert "✗" not in str(cell.get("outputs", "")), f"{path.name}: {cell.source[:60]}"
