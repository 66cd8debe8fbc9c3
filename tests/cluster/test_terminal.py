"""Cells in a terminal's IPython, which has no kernel as a notebook has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import needs
from terminal_ipython import RUN, TerminalIPython, terminal_ipython

pytestmark = [pytest.mark.usefixtures("forked_engines"), pytest.mark.integration, pytest.mark.parallel]

SCRIPT = """
from workbench import cluster
c = cluster.up(2, quiet=True)
%px from tqdm.auto import tqdm; print(tqdm.__name__, sum(tqdm(range(3))))
%px for i in range(2): breakpoint()
%px print("the end")
c.down()
"""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TerminalIPython]:
    """With two ranks, of which one has a name of its own."""
    with terminal_ipython(tmp_path_factory.mktemp("ipython"), 2) as terminal:
        terminal.run("%px weights = 1; globals().update({'only_on_one': 41} if mpi_rank else {})")
        yield terminal


def test_a_bar_that_is_a_widget(terminal: TerminalIPython) -> None:
    """Its cell ends and shows what was printed, and so does the next one."""
    needs("tqdm", "ipywidgets")
    cell = "%%px\nfrom tqdm.auto import tqdm\nprint(tqdm.__name__, sum(tqdm(range(3))))"
    assert "│ tqdm 3" in terminal.run(cell)
    assert "│ next" in terminal.run("%px print('next')")


@pytest.mark.parametrize(
    ("before", "completed", "after", "shown"),
    [
        ("%%px\rprint(wei", "ghts", " + 1)", "│ 2"),
        ("%%rank 1\rx = 1\rprint(only", "_on_one", " + 1)", "rank 1 │ 42"),
        ("%px print(weights.bit_len", "gth", "() + 1)", "│ 2"),
    ],
)
def test_tab_completes_names_of_engines(
    terminal: TerminalIPython, before: str, completed: str, after: str, shown: str
) -> None:
    """In a cell and in a line for them, and a name that one rank has."""
    terminal.complete(before, completed)
    terminal.type(after + RUN)
    assert shown in terminal.to_prompt()


def test_tab_completes_the_names_of_ipython_itself(terminal: TerminalIPython) -> None:
    """In its own cells."""
    terminal.run("own_name = 5")
    terminal.complete("print(own_na", "me")
    terminal.type(f" * 10){RUN}")
    assert "50" in terminal.to_prompt()


@pytest.mark.thorough
def test_cells_of_a_script(tmp_path: Path) -> None:
    """A cell with a bar that is a widget ends; a breakpoint is skipped with a word on each engine."""
    needs("tqdm", "ipywidgets")
    script = tmp_path / "cells.ipy"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, stdin=subprocess.DEVNULL)
    text = done.stdout + done.stderr
    assert "│ tqdm 3" in text, text
    assert text.count("breakpoint() was skipped: nobody can be asked") == 2, text
    assert "│ the end" in text, text
    assert "Traceback" not in text
