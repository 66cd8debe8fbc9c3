"""``%%px`` cells in JupyterLab: tabs of ranks while the cell runs, folding, filter, the live panel; in both themes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from labs import Lab, Notebook, in_browser, look_at_both_themes, needs_make

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300), needs_make, in_browser]

CELLS = [
    "from workbench import cluster\nc = cluster.up(4, quiet=True)",
    "%%px\nimport pathlib, time, numpy as np, workbench as hvd\nhvd.init()",
    "%%px\nprint('begun')\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.01)\nprint('rank', hvd.rank())",
    "%%px\nfor i in range(1000):\n    print('line', i, 'of rank', hvd.rank())",
    "%%px\nfrom IPython.display import HTML\nHTML(f'<table><tr><td>cell of {hvd.rank()}</td></tr></table>')",
    "cluster.watch()",
    "%%px\nfor step in range(5):\n    if hvd.rank() == 2 and step == 3:\n        time.sleep(120)\n"
    "    hvd.allreduce(np.ones(100), name='grad')",
    "%px print(int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]))",
    "c.down()",
    "%%px\nimport ipywidgets\nfrom traitlets import Unicode\ndisplay(ipywidgets.IntSlider(hvd.rank()))\n"
    "for i in range(1000):\n    print('line', i)\n    time.sleep(0.1)\n    if pathlib.Path('go').exists(): break",
    "%%px\nclass Nowhere(ipywidgets.DOMWidget):\n    _model_name = _view_name = Unicode('Nowhere').tag(sync=True)\n"
    "    _model_module = _view_module = Unicode('no-such-module').tag(sync=True)\ndisplay(Nowhere())",
    "%px assert hvd.rank() != 1, 'rank 1 has no ' + 'long words ' * 20",
]


@pytest.fixture
def ranks(lab: Lab, browser: Any) -> Iterator[Notebook]:
    """A notebook with these cells."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, lab.checkout / "notebooks" / "ranks.ipynb")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    (lab.checkout / "notebooks" / "go").unlink(missing_ok=True)
    yield Notebook(page, lab, "notebooks/ranks.ipynb")
    page.close()
    lab.end_kernels()


def begin(notebook: Notebook, cell: int) -> Any:
    """Run a cell by Shift+Enter; return its place in the page without waiting for it."""
    place = notebook.page.locator(".jp-Notebook .jp-CodeCell").nth(cell)
    place.locator(".cm-content").click()
    notebook.page.keyboard.press("Shift+Enter")
    return place


def ended(place: Any) -> Any:
    """Wait until the cell has its number."""
    place.locator(".jp-InputPrompt", has_text="]:").and_(place.locator(":text-matches('\\\\[\\\\d+\\\\]:')")).wait_for(
        timeout=60_000
    )
    return place


@pytest.mark.thorough
def test_a_cell_of_four_ranks(ranks: Notebook, lab: Lab) -> None:
    """Output comes while the cell runs; a tab for each rank, by mouse and keys; long text is folded and filtered."""
    page = ranks.page
    for cell in range(2):
        ended(begin(ranks, cell))
    running = begin(ranks, 2)
    running.locator(".wb-panel", has_text="ranks 0-3").wait_for()  # when the last of them has said it
    assert running.locator(".jp-InputPrompt").inner_text() == "[*]:"
    assert running.locator(".wb-panel").inner_text().split() == ["ranks", "0-3", "begun"]
    running.get_by_role("tab", name="2", exact=True).click()  # kept when the cell goes on
    (lab.checkout / "notebooks" / "go").touch()
    ended(running)
    assert running.locator(".wb-panel").inner_text().split() == ["begun", "rank", "2"]
    page.keyboard.press("ArrowLeft")
    assert running.locator("[role=tab][aria-selected=true]").inner_text() == "1"
    page.keyboard.press("Home")
    assert running.locator(".wb-panel b").all_inner_texts() == ["ranks 0-3", *(f"rank {rank}" for rank in range(4))]

    flood = ended(begin(ranks, 3))
    panel = flood.locator(".wb-panel")
    assert len(panel.inner_text().split("\n")) <= 48  # 40 lines, and the names of four ranks twice
    assert panel.locator("details").count() == 4
    flood.get_by_role("tab", name="3", exact=True).click()
    panel.locator("summary").click()
    panel.locator("pre", has_text="line 500 of rank 3").wait_for()
    flood.get_by_role("searchbox").fill("line 77")
    assert panel.inner_text().split("\n") == [f"line {i} of rank 3" for i in (77, *range(770, 780))]

    tables = ended(begin(ranks, 4))
    assert tables.locator(".wb-panel td").all_inner_texts() == [f"cell of {rank}" for rank in range(4)]
    assert page.locator(".jp-Notebook").evaluate("each => each.scrollWidth <= each.clientWidth")
    failed = ended(begin(ranks, 11))
    traceback = failed.locator("[data-mime-type='application/vnd.jupyter.stderr']")
    assert f"In{failed.locator('.jp-InputPrompt').inner_text().rstrip(':')}, line 1" in traceback.inner_text()
    assert traceback.locator("pre").first.evaluate("each => getComputedStyle(each).wordBreak") == "normal"
    look_at_both_themes(page, "[data-mime-type='application/vnd.jupyter.stderr']")
    look_at_both_themes(page, ".wb-ranks")
    saved_without_a_kernel(ranks, lab)


@pytest.mark.thorough
def test_the_panel(ranks: Notebook) -> None:
    """While a cell runs it names the missing rank and its line; its button interrupts; the next cell is right.

    A page that is loaded anew has the ranks and their panel.
    """
    page = ranks.page
    for cell in (0, 1, 5):
        ended(begin(ranks, cell))
    running = begin(ranks, 6)
    rows = page.locator(".wb-panel-root tbody tr")
    rows.nth(0).locator("td", has_text="for 2 in allreduce.grad").wait_for()
    assert rows.nth(2).locator("td").first.inner_text() == "computes"
    rows.nth(0).get_by_role("button").click()
    detail = page.locator(".wb-panel-detail")
    assert "line 4: hvd.allreduce" in detail.inner_text() or "hvd.allreduce" in detail.inner_text()
    assert "time.sleep(120)" in detail.inner_text()
    look_at_both_themes(page, ".wb-panel-root")
    page.get_by_role("button", name="interrupt", exact=True).click()
    ended(running)
    assert "Interrupted. What the ranks were at:" in running.inner_text()
    assert "for rank 2 in 'allreduce.grad'" in running.inner_text()
    following = ended(begin(ranks, 7))
    assert following.locator(".wb-panel").inner_text().split() == ["ranks", "0-3", "4"]
    status = page.locator("#jp-main-statusbar")
    status.get_by_text("4 ranks: idle").wait_for()
    page.keyboard.press("Control+s")
    page.reload()
    status.get_by_text("4 ranks: idle").wait_for()
    assert rows.nth(3).locator("td").first.inner_text()
    ended(begin(ranks, 8))
    status.get_by_text("4 ranks: idle").wait_for(state="detached")


@pytest.mark.thorough
def test_the_status_bar_is_of_a_notebook_and_its_kernel(ranks: Notebook, lab: Lab) -> None:
    """Another notebook has no ranks; those of a kernel that is restarted have ended, and its panel says what to do."""
    page, idle = ranks.page, ranks.page.locator("#jp-main-statusbar").get_by_text("4 ranks: idle")
    for cell in (0, 1, 5):
        ended(begin(ranks, cell))
    running = begin(ranks, 2)
    running.locator(".wb-panel", has_text="begun").wait_for()
    (lab.checkout / "notebooks" / "go").touch()
    ended(running)
    idle.wait_for()
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.locator(".lm-Menu-itemLabel").get_by_text("New", exact=True).hover()
    page.locator(".lm-Menu-itemLabel").get_by_text("Notebook", exact=True).click()
    page.locator(".jp-Dialog").get_by_role("button", name="Select Kernel").click()
    idle.wait_for(state="detached")
    page.locator(".lm-TabBar-tab", has_text="ranks.ipynb").click()
    idle.wait_for()
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.locator(".lm-Menu-itemLabel").get_by_text("Restart Kernel…", exact=True).click()
    page.locator(".jp-Dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    idle.wait_for(state="detached")
    page.locator(".wb-panel-note", has_text="call cluster.up() and cluster.watch() again").wait_for()


@pytest.mark.thorough
def test_widgets_of_ranks_are_in_their_tabs(ranks: Notebook, lab: Lab) -> None:
    """Each in its rank's tab while text comes, not once more below; one that the page does not know is named there."""
    for cell in range(2):
        ended(begin(ranks, cell))
    running = begin(ranks, 9)
    sliders = running.locator(".wb-panel .widget-slider")
    sliders.nth(3).wait_for()
    sliders.first.evaluate("each => each.id = 'first'")
    running.locator(".wb-panel", has_text="line 9").wait_for()
    assert sliders.first.get_attribute("id") == "first"  # not made anew
    assert [each.split()[-1] for each in sliders.all_inner_texts()] == ["0", "1", "2", "3"]
    running.get_by_role("tab", name="2", exact=True).click()
    assert [each.split()[-1] for each in running.locator(".widget-slider:visible").all_inner_texts()] == ["2"]
    (lab.checkout / "notebooks" / "go").touch()
    ended(running)
    broken = ended(begin(ranks, 10))
    errors = broken.locator(".wb-panel .jupyter-widgets-error-widget")
    errors.nth(3).wait_for()
    errors.first.click()
    errors.first.get_by_text("no-such-module").first.wait_for()
    ended(begin(ranks, 7))


@pytest.mark.thorough
def test_a_page_that_comes_back(ranks: Notebook, lab: Lab, browser: Any) -> None:
    """A cell that runs goes on in a new page, from its next sign of life."""
    for cell in range(2):
        ended(begin(ranks, cell))
    begin(ranks, 2).locator(".wb-panel", has_text="begun").wait_for()
    ranks.page.close()
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{lab.url('lab/tree/notebooks/ranks.ipynb')}?token={lab.token}")
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(2)
    cell.locator(".wb-note", has_text="in the cell, line").wait_for()
    assert cell.locator(".jp-InputPrompt").inner_text() == "[*]:"
    (lab.checkout / "notebooks" / "go").touch()
    cell.locator(".wb-panel", has_text="rank 3").wait_for()
    cell.locator(".jp-InputPrompt", has_text="[ ]:").wait_for()
    page.close()


def saved_without_a_kernel(ranks: Notebook, lab: Lab) -> None:
    """The saved notebook has text and HTML that need neither kernel nor extension."""
    ranks.page.keyboard.press("Control+s")
    path = lab.checkout / "notebooks" / "ranks.ipynb"
    outputs: list[Any] = []
    while not outputs:
        ranks.page.wait_for_timeout(100)
        with contextlib.suppress(nbformat.reader.NotJSONError):  # it is being written
            outputs = nbformat.read(path, 4).cells[3].outputs
    data = outputs[0]["data"]
    assert "rank 3 │ line 999 of rank 3" in data["text/plain"]
    assert len(data["text/plain"].split("\n")) <= 40
    assert "<script" not in data["text/html"]
    assert "<details>" in data["text/html"]
