"""JupyterLab's own debugger on the ranks: the bug icon, a breakpoint in the gutter, variables, step, continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from labs import Lab, Notebook, in_browser, look_at_both_themes, needs_make

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300), needs_make, in_browser]

CELLS = [
    "from workbench import cluster\nc = cluster.up(3, quiet=True)",
    "%%px\nimport numpy as np, workbench as hvd\nhvd.init()",
    "%%px\ndef double(x):\n    y = 2 * x\n    return y\n\n"
    "z = double(hvd.rank() + 10)\nprint(z, float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]))",
    "%px print(int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]))",
    "own = 20\nown += 1\nprint(own)",
]


FRAMES = ["rank 0: double:4", "rank 0: <module>:6", "rank 1: double:4", "rank 2: double:4"]


class Debugging:
    """A notebook whose debugger is used by mouse.

    Args:
        notebook: in its page.
    """

    def __init__(self, notebook: Notebook) -> None:
        self.notebook, self.page = notebook, notebook.page
        self.stack = self.page.locator(".jp-DebuggerCallstack-body li")
        self.choice = self.page.locator(".wb-debugged")

    def switch(self) -> None:
        """Press the bug icon."""
        self.page.locator(".jp-DebuggerBugButton").click()

    def breakpoint(self, cell: int, line: int) -> None:
        """Click into the gutter."""
        place = self.page.locator(".jp-Notebook .jp-CodeCell").nth(cell)
        listed = self.page.locator(".jp-DebuggerBreakpoint")
        before = listed.count()
        gutter = place.locator(".cm-gutter.cm-breakpoint-gutter").bounding_box()
        code = place.locator(".cm-line").nth(line - 1).bounding_box()
        self.page.mouse.click(gutter["x"] + gutter["width"] / 2, code["y"] + code["height"] / 2)
        listed.nth(before).wait_for()

    def begin(self, cell: int) -> Any:
        """Run a cell; its place in the page."""
        place = self.page.locator(".jp-Notebook .jp-CodeCell").nth(cell)
        place.locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")
        return place

    def stands(self, frames: list[str]) -> None:
        """Wait until the call stack shows these frames and no others."""
        from playwright.sync_api import Error

        standing = """[...document.querySelectorAll('.jp-DebuggerCallstack-body li')].map(
            each => each.firstChild.innerText + ':' + each.lastChild.innerText.split(':').pop())"""
        try:
            self.page.wait_for_function(f"frames => JSON.stringify(frames) == JSON.stringify({standing})", arg=frames)
        except Error as error:
            error.add_note(f"{self.page.evaluate(standing)} stood, and not {frames}")
            raise

    def shows(self, name: str, value: str) -> None:
        """Wait until a variable is shown with this value."""
        self.page.wait_for_function(
            """wanted => [...document.querySelectorAll('.jp-DebuggerVariables-body jp-tree-item')].some(
                each => [...each.querySelectorAll('span')].map(part => part.innerText).join(' ') == wanted)""",
            arg=f"{name} {value}",
        )

    def ended(self, cell: Any) -> None:
        """The cell ends as it does without a debugger, and the next cell is right."""
        self.stands([])
        cell.locator(".wb-panel", has_text="24 3.0").wait_for()
        assert cell.locator(".wb-panel").inner_text().split("\n")[1::2] == ["20 3.0", "22 3.0", "24 3.0"]
        assert self.notebook.run(3).split()[-1] == "3"

    def press(self, command: str) -> None:
        """One of the buttons above the call stack."""
        label = {"continue": "Continue", "next": "Next"}[command]
        place = self.page.locator(f".jp-DebuggerSidebar [data-command='debugger:{command}'][aria-label^='{label}']")
        place.and_(self.page.locator("[aria-disabled='false']")).click()


@pytest.fixture
def debugging(lab: Lab, browser: Any, tmp_path: Path) -> Iterator[Debugging]:
    """A notebook with these cells."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, lab.checkout / "notebooks" / "ranks.ipynb")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    yield Debugging(Notebook(page, lab, "notebooks/ranks.ipynb"))
    page.screenshot(path=tmp_path / "end.png")
    page.close()


@pytest.fixture
def stopped(debugging: Debugging) -> Any:
    """A cell whose ranks stand at a breakpoint, in its place in the page."""
    debugging.notebook.run(0)
    debugging.notebook.run(1)
    debugging.switch()
    debugging.breakpoint(2, 4)
    cell = debugging.begin(2)
    debugging.stands(FRAMES)
    return cell


@pytest.mark.thorough
def test_a_breakpoint_in_the_gutter(debugging: Debugging, stopped: Any) -> None:
    """All ranks stop there; variables of each are seen; they step and go on, and the next cell is right."""
    stopped.locator(".wb-note", has_text="the debugger has stopped ranks 0-2").wait_for()
    assert stopped.locator(".jp-DebuggerEditor-highlight").inner_text() == "    return y"
    debugging.shows("y", "20")
    debugging.stack.nth(3).click()
    debugging.shows("y", "24")
    debugging.press("next")
    debugging.stands(["rank 2: <module>:7", "rank 0: <module>:7", "rank 1: <module>:7"])
    debugging.press("continue")
    debugging.ended(stopped)

    debugging.breakpoint(4, 2)  # the kernel's own debugger, for a cell without %%px
    cell = debugging.begin(4)
    debugging.stands(["<module>:2"])
    debugging.shows("own", "20")
    assert debugging.choice.is_hidden()
    debugging.press("continue")
    cell.locator(".jp-OutputArea-output", has_text="21").wait_for()

    debugging.begin(2)
    debugging.stands(["rank 2: double:4", "rank 2: <module>:6", "rank 0: double:4", "rank 1: double:4"])
    one_rank_alone(debugging)


def one_rank_alone(debugging: Debugging) -> None:
    """One rank is looked at, and steps and goes on alone; a new page shows the ranks that stand, as the old one did."""
    page, choice = debugging.page, debugging.choice
    choice.get_by_role("combobox").select_option("1")
    debugging.stands(["rank 1: double:4", "rank 1: <module>:6", "rank 0: double:4", "rank 2: double:4"])
    debugging.shows("y", "22")
    choice.get_by_role("checkbox").check()
    debugging.press("next")
    debugging.stands(["rank 1: <module>:7", "rank 0: double:4", "rank 2: double:4"])
    look_at_both_themes(page, ".wb-debugged")
    debugging.press("continue")
    debugging.stands(["rank 0: double:4", "rank 0: <module>:6", "rank 2: double:4"])
    page.keyboard.press("Control+s")
    page.reload()
    debugging.stands(["rank 0: double:4", "rank 0: <module>:6", "rank 2: double:4"])
    assert choice.get_by_role("checkbox").is_checked()
    choice.get_by_role("checkbox").uncheck()
    debugging.press("continue")
    debugging.stands([])
    debugging.begin(3).locator(".wb-panel", has_text="3").wait_for()
