"""Build the notebooks from the lessons: ``make lessons``, or ``python -m workbench.course.build [name ...]``.

A lesson is a text file in jupytext's percent format. Three notebooks are made of it, by its cells' tags::

    notebooks/   cells without a tag, and those tagged "both": what is shown; executed
    exercises/   cells tagged "exercise" or "both": what is to be done, with blanks; not executed
    solutions/   the same, done, and the cells tagged "instructor"; executed, which is the test of the checks

The learner's cell of an exercise is the line ``# exercise: 03.ring_allreduce``; its text comes from the exercise's
reference solution (``tasks/``). What differs between two runs (times of execution, ids, how a stream was cut) is left
out, and figures that ``lessons/sanitize.cfg`` names stay as they were. So a rebuilt notebook shows a change only where
the lesson or its outputs changed.

A lesson that measures has bounds in ``lessons/bounds.cfg``. It is not built while other processes use the machine, and
not written if a figure is outside its bounds.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbclient import NotebookClient
from traitlets.config import Config

from workbench.config import child_environment
from workbench.course import contents
from workbench.course.links import course, navigation
from workbench.course.outputs import Bound, bounds, joined, keep_equal, outside, patterns
from workbench.course.tasks import task

ROOT = Path(__file__).resolve().parents[2]
CELL_TIMEOUT_S = 180
DIFFERS = ROOT / "lessons" / "sanitize.cfg"
BOUNDS = ROOT / "lessons" / "bounds.cfg"
_BUSY_PERCENT, _LOOK_S = 10.0, 2.0
_NO_CACHE = shutil.ignore_patterns("__pycache__")
KINDS = ("notebooks", "exercises", "solutions")
LICENCES = "Texts: the workbench project, [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/). Code: Apache 2.0."
_EXAMPLES = ROOT / "examples"
SESSION = ("test_horovod", "tensorflow_horovod_basic", "tensorflow_horovod", "pytorch_horovod", "resnet")
"""The examples that lesson 22 starts; they lie beside its notebook."""
_KINDS_OF_CELLS = {"both", "exercise", "instructor"}
_EXERCISE = re.compile(r"# exercise: (\S+)\s*\Z")
_TELLS = re.compile(r"^reveal\(", re.MULTILINE)
_CHECK = re.compile(r"^check\(\"(\S+)\"\)", re.MULTILINE)


@lru_cache(maxsize=1)
def _parsed(text: str) -> Any:
    """Once for the three notebooks of a lesson."""
    import jupytext  # a learner runs notebooks, and needs none of it

    return jupytext.reads(text, fmt="py:percent")


def read(lesson: Path, kind: str = "notebooks") -> Any:
    """A notebook that a lesson describes, without outputs; None if there is nothing in it.

    Args:
        kind: ``notebooks``, ``exercises`` or ``solutions``.

    Raises:
        FileNotFoundError: there is no such lesson.
        ValueError: it names an exercise that does not exist.
    """
    notebook = deepcopy(_parsed(lesson.read_text(encoding="utf-8")))
    cells = [cell for cell in notebook.cells if _belongs(cell, kind)]
    if not any(cell.cell_type == "code" for cell in cells):
        return None
    if kind != "notebooks":
        graded: set[str] = set()
        cells = [_head(notebook), *(_filled(cell, kind == "solutions", graded) for cell in cells)]
    notebook.cells = [*cells, _links(lesson, kind)]
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for i, cell in enumerate(notebook.cells):
        cell.id = f"{lesson.stem[:2]}-{i:02d}"
        cell.metadata.pop("lines_to_next_cell", None)
        cell.metadata["tags"] = [tag for tag in cell.metadata.get("tags", []) if tag not in _KINDS_OF_CELLS]
        if cell.cell_type == "code" and _TELLS.search(cell.source):
            _hide(cell)
        if not cell.metadata["tags"]:
            del cell.metadata["tags"]
    return notebook


def _hide(cell: Any) -> None:
    """Fold a cell's source: it has the fact in it, and its reader is to guess first. One click unfolds it."""
    cell.metadata["jupyter"] = {"source_hidden": True}  # JupyterLab
    cell.metadata["tags"] = [*cell.metadata["tags"], "hide-input"]  # pages made by Sphinx, Jupyter Book, Quarto


def _belongs(cell: Any, kind: str) -> bool:
    tags = set(cell.metadata.get("tags", [])) & _KINDS_OF_CELLS
    if kind == "notebooks":
        return not tags or "both" in tags
    return bool(tags & {"exercise", "both"}) or (kind == "solutions" and "instructor" in tags)


def _head(notebook: Any) -> Any:
    """The lesson's title, for its exercises."""
    title = next(line for cell in notebook.cells for line in cell.source.splitlines() if line.startswith("# "))
    return nbformat.v4.new_markdown_cell(f"{title}: exercises")


def _links(lesson: Path, kind: str) -> Any:
    """The last cell: to the lessons before and after, to the exercises and back."""
    text = navigation(course(lesson.parent), lesson.stem, kind)
    return nbformat.v4.new_markdown_cell(f"{text}\n\n{LICENCES}", metadata={"workbench": {"links": True}})


def _filled(cell: Any, solved: bool, graded: set[str]) -> Any:
    """The cell with the exercise's text in it, and with nbgrader's metadata, so that a school can use it.

    Args:
        cell: of a lesson.
        solved: else with blanks.
        graded: exercises whose check was met before; it counts once.
    """
    if found := _EXERCISE.match(cell.source):
        one = task(found[1])
        cell.source = one.cell(solved).rstrip("\n")
        # nbgrader empties a cell with a solution, its first line, too. One with blanks is to stay as it is.
        cell.metadata["nbgrader"] = _graded(one.name, solution=solved)
    elif (found := _CHECK.search(cell.source)) and found[1] not in graded:
        graded.add(found[1])
        one = task(found[1])
        cell.metadata["nbgrader"] = {**_graded(f"{one.name}.check", grade=True), "points": one.points}
    return cell


def _graded(name: str, solution: bool = False, grade: bool = False) -> dict[str, Any]:
    common = {"grade_id": name.replace(".", "-"), "schema_version": 3, "task": False}
    return {**common, "solution": solution, "grade": grade, "locked": grade}


def execute(notebook: Any, folder: Path, **hooks: Any) -> Any:
    """Run all cells in ``folder``; a cell that raises ends it.

    Args:
        notebook: gets its outputs.
        folder: the cells' working directory.
        hooks: nbclient's, such as ``on_cell_start``.

    Raises:
        nbclient.exceptions.CellExecutionError: with the cell's traceback.
        KeyboardInterrupt: after Ctrl-C, when the kernel has ended.
    """
    where = {"metadata": {"path": str(folder)}}
    quiet = ["--log-level=ERROR"]  # the kernel's warnings are not the reader's
    options = {"timeout": CELL_TIMEOUT_S, "extra_arguments": quiet, "store_widget_state": False, **hooks}
    with tempfile.TemporaryDirectory(prefix="workbench-") as ipython:
        # The kernel talks over sockets in a folder that nobody else may enter, not over ports that others can read.
        kernel = {"transport": "ipc", "connection_file": f"{ipython}/kernel.json"}
        client = NotebookClient(notebook, resources=where, config=Config({"KernelManager": kernel}), **options)
        # Cluster files in a folder of their own; engines' outputs grouped; no colours in tracebacks.
        try:
            client.execute(env=child_environment(IPYTHONDIR=ipython, IPP_NONINTERACTIVE="1", NO_COLOR="1"))
        except BaseException:
            if hasattr(client, "_async_cleanup_kernel_future"):  # nbclient took Ctrl-C for itself, and stumbles over it
                raise KeyboardInterrupt from None
            raise
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):  # a widget dies with its kernel; its picture stays
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def write(notebook: Any, target: Path, expected: Sequence[Bound] = ()) -> None:
    """Write a notebook; outputs that differ only in what differs from run to run stay as they were.

    Raises:
        SystemExit: a figure is outside its bounds.
    """
    if wrong := outside(notebook, expected):
        raise SystemExit("\n  ".join([f"{target.name} is not written. Was the machine busy?", *wrong]))
    if target.exists() and not outside(before := nbformat.read(target, as_version=4), expected):
        keep_equal(notebook, before, patterns(DIFFERS))
    nbformat.write(notebook, target)


def refuse_if_busy(taken_percent: float) -> None:
    """Times are measured on a machine that does nothing else.

    Args:
        taken_percent: of all cores' time, what is taken before a lesson begins.

    Raises:
        SystemExit: it is too much.
    """
    if taken_percent > _BUSY_PERCENT:
        raise SystemExit(
            f"Other processes take {taken_percent:.0f} % of this machine's processor time; at most {_BUSY_PERCENT:g} % "
            "are allowed, for this lesson measures times. End them or wait, then build again."
        )


def lessons(names: list[str]) -> list[Path]:
    """The lessons asked for by number or name; all without ``names``."""
    found = sorted((ROOT / "lessons").glob("[0-9]*.py"))
    chosen = [path for path in found if not names or any(path.stem.startswith(name) for name in names)]
    if not chosen:
        raise SystemExit(f"no lesson {', '.join(names)}; there are {', '.join(path.stem for path in found)}")
    return chosen


def _taken_percent() -> float:
    return float(psutil.cpu_percent(_LOOK_S))


def main(arguments: list[str] | None = None, taken_percent: Callable[[], float] = _taken_percent) -> None:
    """Build, execute and write.

    Args:
        arguments: of the command line.
        taken_percent: looks at the machine, see :func:`refuse_if_busy`.
    """
    parser = argparse.ArgumentParser(description="Build notebooks/, exercises/ and solutions/ from lessons/.")
    parser.add_argument("names", nargs="*", help="numbers or names of lessons; default: all")
    parser.add_argument("--kind", choices=KINDS, help="only one kind of notebook")
    options = parser.parse_args(arguments)
    if options.kind in (None, "notebooks"):  # beside the notebook that reads them: the folder can be copied alone
        shutil.copytree(ROOT / "lessons" / "steps", ROOT / "notebooks" / "steps", ignore=_NO_CACHE, dirs_exist_ok=True)
        (ROOT / "notebooks" / "steps" / "session").mkdir(exist_ok=True)
        for each in SESSION:
            shutil.copy(_EXAMPLES / f"{each}.py", ROOT / "notebooks" / "steps" / "session")
    for lesson in lessons(options.names):
        for kind in [options.kind] if options.kind else KINDS:
            notebook = read(lesson, kind)
            if notebook is None:
                continue
            target = ROOT / kind / f"{lesson.stem}.ipynb"
            print(f"{lesson.relative_to(ROOT)} → {target.relative_to(ROOT)}", flush=True)
            target.parent.mkdir(exist_ok=True)
            if kind == "exercises":
                write(notebook, target)
                continue
            expected = bounds(BOUNDS, lesson.stem) if kind == "notebooks" else []
            if expected:
                refuse_if_busy(taken_percent())
            write(execute(notebook, target.parent), target, expected)
    if options.kind in (None, "exercises"):  # for the AI assistants of those who do the exercises
        shutil.copyfile(ROOT / "instructors" / "ai-policy.md", ROOT / "exercises" / "AGENTS.md")
    if contents.FILE.is_relative_to(ROOT):
        contents.write(ROOT / "lessons")  # for the side bar in JupyterLab


if __name__ == "__main__":
    main()
