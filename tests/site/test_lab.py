"""The lab of the site: notebooks in JupyterLite, in a real browser, from the site's own files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from right_answers import RING

from workbench.cli.grade.submissions import read
from workbench.course.site import lab

pytestmark = [pytest.mark.course, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]

EXERCISES, LESSON = "exercises/03_ring_allreduce", "notebooks/03_ring_allreduce"


@pytest.fixture(autouse=True)
def in_site(site: Path) -> None:
    """These need a site that was built with Pyodide and JupyterLite."""
    if not (site / lab.FOLDER).exists():
        pytest.skip("no lab: make setup-tests brings Pyodide and JupyterLite")


class Lab:
    """A notebook that was opened from its page.

    Args:
        browser: playwright's.
        address: of the site.
        name: of the page.
    """

    def __init__(self, browser: Any, address: str, name: str) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.elsewhere: list[str] = []
        self.context.on("request", self._requested)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)  # Python in a browser on a busy machine
        self.address = address
        self.page.goto(f"{address}/{name}.html")
        self.page.get_by_role("link", name="Open as a notebook in the browser").click()
        self.page.get_by_text("Python (Pyodide) | Idle").wait_for(timeout=90_000)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.elsewhere.append(request.url)

    def cell(self, number: int) -> Any:
        """A code cell, from 0."""
        cell = self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)
        cell.scroll_into_view_if_needed()
        return cell

    def run(self, number: int, text: str | None = None) -> str:
        """Run a cell, with its own text or another one; what it has printed when it has ended."""
        self.cell(number).locator(".cm-content").click()
        if text is not None:
            self.page.keyboard.press("ControlOrMeta+a")
            self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Shift+Enter")
        self.page.wait_for_timeout(200)  # a cell that has run before shows a number until then
        prompt = self.cell(number).locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]"))
        prompt.wait_for(timeout=90_000)
        self.page.get_by_text("Python (Pyodide) | Idle").wait_for()
        return "".join(self.cell(number).locator(".jp-OutputArea-output").all_inner_texts())


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Callable[..., Lab]]:
    """Opens notebooks; nothing may have been asked of another server."""
    found: list[Lab] = []

    def open_(name: str, address: str = address) -> Lab:
        found.append(Lab(browser, address, name))
        return found[-1]

    yield open_
    for each in found:
        each.context.close()
        assert each.elsewhere == []


@pytest.mark.thorough
def test_an_exercise_is_judged_in_the_lab(opened: Callable[..., Lab], tmp_path: Path) -> None:
    """As on a computer, by the notebook's own cells; the notebook is kept, and `workbench grade` reads it."""
    book = opened(EXERCISES)
    book.run(0)
    book.run(4, RING)
    verdict = book.run(5)
    assert "✓ score: 6 messages per rank" in verdict
    assert "✗" not in verdict
    book.page.keyboard.press("ControlOrMeta+s")
    book.page.get_by_text("Saving completed").wait_for()
    with book.page.expect_download() as got:
        book.page.get_by_role("menuitem", name="File").click()
        book.page.get_by_role("menuitem", name="Download", exact=True).click()
    got.value.save_as(tmp_path / "mine.ipynb")
    handed_in = read(str(tmp_path / "mine.ipynb"))
    assert handed_in.problem == ""
    assert RING.strip() in [cell.strip() for cell in handed_in.cells]


@pytest.mark.thorough
def test_a_lesson_is_read_in_the_lab(opened: Callable[..., Lab], served: str) -> None:
    """A guess, a player, a plot; what is not there says so; a loop without end has its verdict, or an end."""
    book = opened(LESSON, served)
    for number in range(7):
        book.run(number)
    form = book.cell(4)
    form.get_by_text("1,200 kB").last.click()
    form.get_by_role("button", name="Store my guess").click()
    form.get_by_text("Stored: 1,200 kB").wait_for()
    book.cell(5).get_by_role("button", name="Step on").click()
    book.cell(5).get_by_text("step 1 of 6").wait_for()

    book.run(0, "import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    book.cell(0).locator(".jp-OutputArea-output img").wait_for()
    assert book.run(1, "%%px\nx = 1").startswith("%%px needs engines")
    assert book.run(1, "import torch\ntorch.ones(3)").startswith("PyTorch is not there in a browser")
    assert "did not end within" in book.run(2, "def f(comm):\n    while True: pass\nsimulate(2, f)")
    book.run(2, "x = 1")
    book.cell(3).locator(".cm-content").click()
    book.page.keyboard.press("ControlOrMeta+a")
    book.page.keyboard.insert_text("while True: pass")
    book.page.keyboard.press("Shift+Enter")
    book.page.get_by_role("menuitem", name="Kernel").click()
    book.page.get_by_role("menuitem", name=re.compile("^Restart Kernel…")).click()
    book.page.locator(".jp-Dialog .jp-mod-warn").click()
    book.page.get_by_text("Python (Pyodide) | Idle").wait_for()
    assert "03.bytes" in book.run(2, "print(open('.workbench/progress.json').read())")


def test_lessons_that_need_engines_throughout_are_not_there(site: Path) -> None:
    """A notebook of the lab runs in a browser in its greater part; each has its link, and the others have none."""
    there = {f"{path.parent.name}/{path.stem}" for path in (site / lab.FOLDER / "files").rglob("*.ipynb")}
    assert {EXERCISES, LESSON} <= there
    assert f"/{lab.ENGINES.pattern}/m" in (site / "_static" / "live" / "page.js").read_text(encoding="utf-8")
    assert {"notebooks/00_quickstart", "notebooks/13_capstone"}.isdisjoint(there)
    pages = [path for kind in ("notebooks", "exercises") for path in (site / kind).glob("[0-9]*.html")]
    linked = [path for path in pages if 'class="wb-lab"' in path.read_text(encoding="utf-8")]
    assert {f"{path.parent.name}/{path.stem}" for path in linked} == there
