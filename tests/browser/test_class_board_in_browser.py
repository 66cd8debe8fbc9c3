"""The page of ``workbench class`` in a browser: a class of thirty at work, in both themes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs import in_browser, look_at_both_themes

from workbench.course import progress_file
from workbench.course.classroom import board as class_board
from workbench.course.classroom.server import server

pytestmark = [pytest.mark.integration, pytest.mark.slow, in_browser]

NAMES = ["03.reduce_scatter", "03.ring_allreduce", "04.average_gradients"]
EVIL = "<img src=x onerror=alert(document)>"


def check(folder: Path, name: str, passed: bool, ago_s: float, verdict: str = "") -> None:
    """Write what a check writes."""
    entry = {"attempts": 2, "passed": passed, "began": time.time() - ago_s, "verdict": verdict}
    progress_file.update(folder / progress_file.FILE, lambda contents: contents.update({name: entry}))


def guess(folder: Path, answer: str) -> None:
    """And what predict() writes."""
    kept = {"first": answer, "last": answer, "told": True, "right": False}
    progress_file.update(
        folder / progress_file.FILE, lambda contents: contents.update({"predictions": {"03.bytes": kept}})
    )


@pytest.fixture
def board(tmp_path: Path) -> Iterator[tuple[list[Path], str]]:
    """The learners' folders, and the page's address."""
    folders = [tmp_path / f"learner-{k:02}" / "exercises" for k in range(30)]
    for k, folder in enumerate(folders):
        folder.mkdir(parents=True)
        for done in range(k % 3):
            check(folder, NAMES[done], True, 1000 - done)
        check(folder, NAMES[k % 3], False, 700.0 if k % 5 == 0 else 60.0, f"right: n = 3: {EVIL}; rank 0")
        guess(folder, ["8 MB", "12 MB"][k % 2])
    asked = class_board.questions(Path(__file__).resolve().parents[2] / "notebooks")
    found = class_board.learners([tmp_path])
    served, address = server(lambda: class_board.state(found, asked))
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield folders, address
    served.shutdown()
    thread.join()
    served.server_close()


def test_a_class_of_thirty(browser: Any, board: tuple[list[Path], str], tmp_path: Path) -> None:
    """What a learner does is there by itself; texts of learners are texts; nothing is wrong for a screen reader."""
    folders, address = board
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append("dialog"), dialog.dismiss()))
    page.goto(address)
    page.get_by_text("30 learners").wait_for()
    assert page.locator("td.stuck").count() == 6
    assert page.get_by_text(EVIL).count() >= 1
    before = page.locator("td.passed").count()
    check(folders[0], NAMES[0], True, 700.0)
    page.wait_for_function("n => document.querySelectorAll('td.passed').length === n", arg=before + 1, timeout=20_000)
    page.locator("summary").filter(has_text="03.bytes").press("Enter")
    page.locator(".bar").first.wait_for()

    def choose(page: Any, theme: str) -> None:
        page.emulate_media(color_scheme=theme)
        page.screenshot(path=tmp_path / f"{theme}.png", full_page=True)

    look_at_both_themes(page, "main", choose)
    page.get_by_label("Lesson").select_option("04")
    page.wait_for_function("document.querySelectorAll('thead th').length === 2 + 3")
    assert problems == []
    page.close()
