"""Build the notebooks from the lessons: ``make lessons``, or ``python -m workbench.course.build [name ...]``.

A lesson is a text file in jupytext's percent format; a notebook is made by running it from top to bottom. What
differs between two runs (times of execution, ids) is left out, so a rebuilt notebook shows a change only
where the lesson or its outputs changed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

from workbench.config import child_environment

ROOT = Path(__file__).resolve().parents[2]
CELL_TIMEOUT_S = 180


def read(lesson: Path) -> Any:
    """The notebook that a lesson describes, without outputs.

    Raises:
        FileNotFoundError: there is no such lesson.
    """
    notebook = jupytext.read(lesson, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for i, cell in enumerate(notebook.cells):
        cell.id = f"{lesson.stem[:2]}-{i:02d}"
        cell.metadata.pop("lines_to_next_cell", None)
    return notebook


def execute(notebook: Any, folder: Path, **hooks: Any) -> Any:
    """Run all cells in ``folder``; a cell that raises ends it.

    Args:
        notebook: gets its outputs.
        folder: the cells' working directory.
        hooks: nbclient's, such as ``on_cell_start``.

    Raises:
        nbclient.exceptions.CellExecutionError: with the cell's traceback.
    """
    where = {"metadata": {"path": str(folder)}}
    quiet = ["--log-level=ERROR"]  # the kernel's warnings are not the reader's
    client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, resources=where, extra_arguments=quiet, **hooks)
    with tempfile.TemporaryDirectory(prefix="workbench-") as ipython:
        # Cluster files in a folder of their own; engines' outputs grouped; no colours in tracebacks.
        client.execute(env=child_environment(IPYTHONDIR=ipython, IPP_NONINTERACTIVE="1", NO_COLOR="1"))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def lessons(names: list[str]) -> list[Path]:
    """The lessons asked for by number or name; all without ``names``."""
    found = sorted((ROOT / "lessons").glob("[0-9]*.py"))
    chosen = [path for path in found if not names or any(path.stem.startswith(name) for name in names)]
    if not chosen:
        raise SystemExit(f"no lesson {', '.join(names)}; there are {', '.join(path.stem for path in found)}")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    """Build and execute; write to notebooks/."""
    parser = argparse.ArgumentParser(description="Build notebooks/ from lessons/.")
    parser.add_argument("names", nargs="*", help="numbers or names of lessons; default: all")
    for lesson in lessons(parser.parse_args(arguments).names):
        target = ROOT / "notebooks" / f"{lesson.stem}.ipynb"
        print(f"{lesson.relative_to(ROOT)} → {target.relative_to(ROOT)}", flush=True)
        nbformat.write(execute(read(lesson), target.parent), target)


if __name__ == "__main__":
    main()
