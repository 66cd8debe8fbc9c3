"""One bad cell, one message: what a learner sees in the notebook when ``%%px`` fails."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from workbench.cluster import cells

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

WAITED = ("RankFailedError", "Rank 2 raised an exception, so 'x' can never complete.\n  more", "a long traceback")


def test_the_cause_comes_first_and_the_others_in_a_line() -> None:
    """Whose own mistake it was is shown with the traceback; who waited, in one line for equal words."""
    found = [(0, *WAITED), (1, *WAITED), (2, "KeyError", "'lr'", "Traceback\nKeyError: 'lr'"), (3, *WAITED)]
    assert cells.message(found) == [
        "rank 2:",
        "Traceback",
        "KeyError: 'lr'",
        "",
        "  ranks 0, 1, 3: RankFailedError: Rank 2 raised an exception, so 'x' can never complete.",
    ]


def test_a_mistake_that_all_make_is_shown_once() -> None:
    """Four times the same NameError is one traceback."""
    found = [(rank, "NameError", "name 'y' is not defined", f"Traceback of {rank}") for rank in range(4)]
    assert cells.message(found) == ["ranks 0, 1, 2, 3:", "Traceback of 0"]


def test_a_collective_error_of_all_is_shown_once() -> None:
    """Where nobody raised by himself, the first rank's error says what there is to say."""
    found = [(rank, "MissingRanksError", "Rank 1 is idle", "the traceback") for rank in (0, 2)]
    assert cells.message(found) == ["ranks 0, 2:", "the traceback"]


def test_an_engine_that_has_died_comes_first() -> None:
    """It is named by its number, without the frames of the hub, which says it; then who waited, or made a mistake."""
    died = (1, "EngineError", "Engine 1 died while running task 'c_14'", "frames of the hub")
    lost = ("PeerLostError", "Rank 1 was lost: its process has ended.", "a long traceback")
    gone = "engine 1 is gone: call engines.rescue() in a cell without %%px."
    waited = "  ranks 0, 2: PeerLostError: Rank 1 was lost: its process has ended."
    assert cells.message([died]) == [gone]
    assert cells.message([(0, *lost), died, (2, *lost)]) == [gone, "", waited]
    mistake = (2, "KeyError", "'lr'", "Traceback\nKeyError: 'lr'")
    assert cells.message([died, mistake])[:3] == [gone, "", "rank 2:"]


def run_cells(tmp_path: Path, *source: str) -> tuple[list[str], list[str]]:
    """What a notebook with these cells shows of errors, and what it prints."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in source])
    NotebookClient(notebook, timeout=60, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = ["\n".join("\n".join(out.get("traceback", [])) for out in cell.outputs) for cell in notebook.cells]
    printed = ["".join(out.get("text", "") for out in cell.outputs) for cell in notebook.cells]
    return [re.sub(r"\x1b\[[0-9;]*m", "", text) for text in shown], printed


def test_in_a_notebook(tmp_path: Path) -> None:
    """The real thing: a kernel, three engines, one with a mistake, one that calls alone, and one that dies.

    Its cell and all later ones say which engine is gone and what to do; after rescue() there is nothing to say.
    """
    shown, printed = run_cells(
        tmp_path,
        "from workbench import cluster\nengines = cluster.up(3, quiet=True)",
        "%%px\nimport os\nimport numpy as np\nimport workbench as hvd\nhvd.init()",
        "%%px\nif hvd.rank() == 1:\n    settings['lr']\nhvd.allreduce(np.ones(3), name='x')",
        "%%px\nif hvd.rank() == 0:\n    hvd.allreduce(np.ones(3), name='lonely')",
        "%%px\nprint(hvd.allreduce(np.ones(3), op=hvd.Sum))",
        "%%px\nif hvd.rank() == 1:\n    os._exit(3)\nhvd.allreduce(np.ones(3), name='x')",
        "%%px\nprint(1)",
        "%px print(1)",
        "engines.view['np']",
        "engines.rescue()",
        "%px print(1)",
        "engines.down()",
    )
    mistake = shown[2].splitlines()
    assert mistake[0] == "rank 1:"
    assert sum("NameError: name 'settings' is not defined" in line for line in mistake) == 1
    assert "ranks 0, 2: RankFailedError: Rank 1 raised an exception" in mistake[-1]
    assert shown[3].startswith("rank 0:")
    assert "Ranks 1, 2 are idle" in shown[3]
    assert "workbench/job/api.py" not in shown[3]
    assert not shown[4], shown[4]
    assert printed[4].count("[3. 3. 3.]") == 3
    shown, printed = shown[3:], printed[3:]
    gone = "engine 1 is gone: call engines.rescue() in a cell without %%px."
    first, nothing, others = shown[2].splitlines()
    assert (first, nothing) == (gone, "")
    assert others.startswith("  ranks 0, 2: PeerLostError: Rank 1 was lost: its process ")
    # Before that stands what was in flight, if they had sent anything before it died.
    assert others.endswith(" Call engines.rescue() in a cell without %%px.")
    assert shown[3:6] == [f"PeerLostError: {gone}"] * 3
    assert printed[3:6] == [""] * 3
    assert not "".join(shown[6:]).strip()
    assert "rank 1 is gone" in printed[6]
    assert printed[7].count("1\n") == 3
