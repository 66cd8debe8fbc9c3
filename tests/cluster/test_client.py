"""Cells of a terminal's IPython, which has no kernel as a notebook has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from installed import needs

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

SCRIPT = """
from workbench import cluster
c = cluster.up(2, quiet=True)
%px from tqdm.auto import tqdm; print(tqdm.__name__, sum(tqdm(range(3))))
%px for i in range(2): breakpoint()
%px print("the end")
c.down()
"""


def test_cells_of_a_terminal(tmp_path: Path) -> None:
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
