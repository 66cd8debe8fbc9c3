"""The course in JupyterLab as ``make lab`` opens it: welcome page, side bar, the learner's copies, both themes."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import nbformat
import pytest
from labs import QUICKSTART, RING, RING_EXERCISES, Lab, Notebook, choose_theme, in_browser, needs_make

from workbench.course import progress_file
from workbench.course.tasks import names

pytestmark = [
    *[pytest.mark.integration, pytest.mark.course, pytest.mark.slow, pytest.mark.timeout(300)],
    *[needs_make, in_browser],
]

COPY, EXERCISES = f"my/{QUICKSTART}", f"my/{RING_EXERCISES}"
# Of JupyterLab itself only what we put into it is looked at.
AXE = "axe.run({include: [['#wb-course'], ['#wb-welcome']]}, {resultTypes: ['violations']})"

FIGURE = "from workbench.course import drawing\ndrawing.ring_chunks(4)"
QUESTION = """from workbench.course.predictions import predict

predict(
    "03.bytes",
    "How many bytes? And here the line goes on, to far more than what a window has room for at 1,280 pixels, or at any",
    choices=["2 MB", "8 MB", "12 MB"],
)"""
SIDEWAYS = """
() => [...document.querySelectorAll('.jp-NotebookPanel *')]
    .filter(each => each.scrollWidth > each.clientWidth + 1 && each.getClientRects().length)
    .filter(each => ['auto', 'scroll'].includes(getComputedStyle(each).overflowX))
    .map(each => each.outerHTML.slice(0, 200))
"""


@pytest.fixture
def page(lab: Lab, browser: Any, tmp_path: Path) -> Iterator[Any]:
    """JupyterLab as it opens, in an empty workspace."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(30_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{lab.url('lab')}?reset&token={lab.token}")
    page.get_by_role("heading", name="Distributed deep learning").wait_for()
    yield page
    page.screenshot(path=tmp_path / "end.png")
    page.close()
    assert wrong == []


def lesson(page: Any, number: str) -> Any:
    """Its row in the side bar."""
    return page.locator("#wb-course .wb-lesson").filter(has=page.get_by_role("button", name=f"{number} "))


def opened(page: Any) -> list[str]:
    """The notebooks that are open. A new tab gets its path a moment later."""
    page.wait_for_function(
        "() => document.querySelectorAll('.jp-NotebookPanel').length ==="
        " document.querySelectorAll('#jp-main-dock-panel .lm-TabBar-tab[title*=\"Path: \"]').length"
    )
    titles = [tab.get_attribute("title") or "" for tab in page.locator("#jp-main-dock-panel .lm-TabBar-tab").all()]
    return [line.removeprefix("Path: ") for title in titles for line in title.splitlines() if line.startswith("Path: ")]


def everybody_can_use_it(page: Any) -> None:
    """axe-core finds nothing in the side bar and the page, in the light and in the dark theme."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("not installed: axe-playwright-python, which brings axe-core (make setup)")
    page.evaluate((Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    for details in lesson(page, "03").locator("summary").all():
        details.click()
    for theme in ("light", "dark"):
        choose_theme(page, theme)
        told = [
            (each["id"], [node["html"][:200] for node in each["nodes"]]) for each in page.evaluate(AXE)["violations"]
        ]
        assert told == [], theme


def test_it_opens_on_a_page_that_says_where_to_begin(lab: Lab, page: Any) -> None:
    """In place of the launcher, beside the side bar; nothing asks about news; the log says the address and no more.

    Everybody can use it, in both themes.
    """
    assert page.locator("#wb-welcome").get_by_role("button", name="Begin here: 00 Quickstart").is_visible()
    assert page.locator("#jp-main-dock-panel .lm-TabBar-tabLabel").all_inner_texts() == ["Welcome"]
    assert page.get_by_role("heading", name="Course").is_visible()
    assert page.locator(".jp-toast").count() == 0
    said = lab.log.read_text()
    assert f"127.0.0.1:{lab.port}/lab?token={lab.token}" in said
    assert [line for line in said.splitlines() if line.startswith(("[I", "[W", "[E"))] == []
    assert len(said.splitlines()) < 15
    everybody_can_use_it(page)


def test_a_lesson_opens_as_the_learners_copy(lab: Lab, page: Any) -> None:
    """By the keyboard; what is run and saved there changes no published notebook, and a read lesson is ticked."""
    published = (lab.checkout / QUICKSTART).read_bytes()
    begin = page.locator("#wb-course .wb-begin")
    begin.focus()
    page.keyboard.press("Enter")
    page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
    assert page.locator(".jp-NotebookPanel").count() == 1
    assert opened(page) == [COPY]
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").last.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("6 * 7")
    page.keyboard.press("Control+Enter")
    page.locator(".jp-Notebook .jp-OutputArea-output", has_text="42").wait_for()
    page.locator(".jp-Notebook .jp-InputPrompt:text-matches('\\\\[\\\\d+\\\\]:')").wait_for()  # comes after the output
    page.keyboard.press("Control+s")
    lesson(page, "00").locator("summary", has_text="✓").wait_for()
    page.locator("#wb-course .wb-begin", has_text="Go on here: 01 Ranks").wait_for()
    assert lesson(page, "01").get_by_role("button", name="01 Ranks").get_attribute("aria-current") == "step"
    assert "6 * 7" in (lab.checkout / COPY).read_text()
    assert (lab.checkout / QUICKSTART).read_bytes() == published


@pytest.mark.thorough
def test_what_is_solved_is_counted(lab: Lab, page: Any) -> None:
    """A card only when its cause is named, too; an exercise opens at its cell."""
    kept = lab.checkout / "my" / "exercises" / progress_file.FILE
    progress_file.update(kept, lambda found: found.update({"03.reduce_scatter": {"passed": True}}))
    progress_file.update(kept, lambda found: found.update({"11.epoch": {"passed": True, "cause": False}}))
    page.locator("#wb-course").get_by_role("button", name="Refresh").click()
    page.get_by_text(f"1 of {len(names())} exercises solved", exact=True).wait_for()
    ring = lesson(page, "03")
    assert ring.locator("summary").inner_text() == "1 of 2 solved"
    assert lesson(page, "11").locator("summary").inner_text() == "0 of 12 solved"
    ring.locator("summary").focus()
    page.keyboard.press("Enter")
    assert ring.get_by_role("button", name="the first half of the ring: solved").is_visible()
    ring.get_by_role("button", name="the whole ring: open").click()
    active = page.locator(".jp-Notebook .jp-mod-active")
    active.locator(".cm-content", has_text='@exercise("03.ring_allreduce")').wait_for()
    assert opened(page) == [EXERCISES]


def test_a_copy_is_reset_and_the_old_one_kept(lab: Lab, page: Any) -> None:
    """Also what is not saved yet; the new one has no outputs and is open. It can be done again."""
    for i in (1, 2):
        ring = lesson(page, "03")
        if i == 1:
            ring.locator("summary").click()
        ring.get_by_role("button", name="03 Ring allreduce", exact=True).click()
        page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
        page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(f"print('mine', {i})")
        ring.get_by_role("button", name="Reset my copy of the lesson").click()
        page.get_by_role("button", name="Reset", exact=True).click()
        page.locator(".jp-Notebook .jp-CodeCell .cm-content", has_text="import numpy").first.wait_for()
        old = lab.checkout / f"my/notebooks/03_ring_allreduce.{i}.ipynb"
        assert f"print('mine', {i})" in old.read_text()
        fresh = nbformat.read(lab.checkout / "my" / RING, as_version=4)
        published = nbformat.read(lab.checkout / RING, as_version=4)
        assert [cell.source for cell in fresh.cells] == [cell.source for cell in published.cells]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in fresh.cells)
        assert page.locator(".jp-NotebookPanel").count() == 1


@pytest.mark.thorough
def test_a_lesson_is_newer_than_its_copy(lab: Lab, page: Any) -> None:
    """The side bar says so, until a new copy is taken."""
    states = lab.checkout / "my/notebooks/.workbench/lessons.json"
    states.write_text(states.read_text().replace('"published": "', '"published": "new'))
    page.get_by_role("button", name="Refresh").click()
    ring = lesson(page, "03")
    ring.locator("summary", has_text="newer than your copy").click()
    ring.locator(".wb-newer", has_text="the lesson").wait_for()
    ring.get_by_role("button", name="Reset my copy of the lesson").click()
    page.get_by_role("button", name="Reset", exact=True).click()
    ring.locator(".wb-newer", has_text="the lesson").wait_for(state="hidden")
    page.get_by_role("button", name="Refresh").click()
    page.locator(".wb-lesson summary", has_text="newer than your copy").first.wait_for()  # another one still is
    assert "newer" not in ring.locator("summary").inner_text()


@pytest.mark.thorough
def test_a_removed_copy_comes_back(lab: Lab, page: Any) -> None:
    """When its lesson is opened."""
    (lab.checkout / "my" / RING).unlink()
    lesson(page, "03").get_by_role("button", name="03 Ring allreduce", exact=True).click()
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    assert opened(page) == [f"my/{RING}"]
    assert (lab.checkout / "my" / RING).exists()


def scrolled(page: Any) -> list[str]:
    """What in the open notebook is wider than its place, and can be scrolled sideways."""
    found: list[str] = page.evaluate(SIDEWAYS)
    return found


@pytest.mark.thorough
def test_figures_follow_the_theme_and_nothing_scrolls_sideways(lab: Lab, browser: Any, tmp_path: Path) -> None:
    """JupyterLab's theme, not that of the reader's system; and a question that is asked stands there once."""
    code = nbformat.v4.new_code_cell
    folded = code("#" * 300 + "\n1 + 1", metadata={"jupyter": {"source_hidden": True}})
    cells = [code(FIGURE), code(QUESTION), folded, code("'last'")]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    written = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(written, lab.checkout / "my/exercises/own.ipynb")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    notebook = Notebook(page, lab, "my/exercises/own.ipynb?reset")
    notebook.choose("Run", "Run All Cells")
    notebook.wait(4, counted=4)
    page.locator(".jp-Notebook form.wbq").wait_for()
    assert page.locator(".jp-Notebook").inner_text().count("How many bytes") == 1
    grounds = {}
    for theme in ("light", "dark"):
        choose_theme(page, theme)
        for system in ("light", "dark"):
            page.emulate_media(color_scheme=system)
            figure = page.locator(".jp-Notebook .jp-RenderedSVG img").screenshot(
                path=tmp_path / f"{theme}-{system}.png"
            )
            pixel = matplotlib.image.imread(io.BytesIO(figure))[8, 8, :3]
            grounds[theme, system] = "light" if min(pixel) == 1 else "dark" if max(pixel) < 0.2 else str(pixel)
        assert scrolled(page) == []
    page.close()
    assert grounds == {(theme, system): theme for theme in ("light", "dark") for system in ("light", "dark")}
