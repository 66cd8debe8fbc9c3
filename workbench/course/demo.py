"""``make demo``: run the first lesson from top to bottom, as a reader would, and print its table.

Prints the table of images/s, speed-up and efficiency, the proofs of equality, where the executed notebook
lies, and last ``demo: OK``. The exit code is 0 only if every cell ran and every proof was shown; the speed-up
is the machine's affair, and a busy machine is no failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient.exceptions import CellExecutionError

from workbench.cli.learn import built
from workbench.course.build import execute
from workbench.course.outputs import printed

NAME = "notebooks/00_quickstart.ipynb"
PROOFS = {
    "00.accuracy": "Fact: more than 90 %.",
    "all replicas hold": "the same bits: True",
    "00.same": "Fact: less than 1e-12, but not 0.",
}
"""How a line begins, and how it ends."""


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="make demo", description="Run the first lesson and print its table.")
    parser.add_argument("--output", type=Path, default=Path("build") / "00_quickstart.executed.ipynb")
    output: Path = parser.parse_args(arguments).output
    path = built() / NAME
    notebook = nbformat.read(path, as_version=4)
    print(NAME, flush=True)
    started = time.monotonic()
    try:
        execute(notebook, path.parent, on_cell_start=_print_cell)
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return _verdict(notebook, output, ["a cell raised (see above)"])
    text = printed(notebook)
    print(_table(text))
    shown = [line for line in text.splitlines() if line.startswith(tuple(PROOFS))]
    print("\n".join(dict.fromkeys(shown)))
    print(f"{len(notebook.cells)} cells in {time.monotonic() - started:.0f} s")
    proved = {begin for begin, end in PROOFS.items() for line in shown if line.startswith(begin) and line.endswith(end)}
    return _verdict(notebook, output, [f"{begin} … {end}" for begin, end in PROOFS.items() if begin not in proved])


def _print_cell(cell: Any, cell_index: int) -> None:
    """Print the headings, as the run comes to them."""
    if cell.cell_type == "markdown" and cell.source.startswith("#"):
        print(f"  {cell.source.splitlines()[0].lstrip('# ')}", flush=True)


def _table(text: str) -> str:
    """The lines of the table: its head, and what begins with a number of engines."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("engines ")), None)
    if start is None:
        return "(no table)"
    end = next((i for i in range(start + 1, len(lines)) if "%" not in lines[i]), len(lines))
    return "\n".join(lines[start:end])


def _verdict(notebook: Any, output: Path, failed: list[str]) -> int:
    output.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, output)
    print(f"executed notebook: {output}")
    for what in failed:
        print(f"demo: not shown: {what}", file=sys.stderr)
    print("demo: FAILED" if failed else "demo: OK")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
