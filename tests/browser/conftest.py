"""A JupyterLab and a browser for the tests of a file, each ended with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from labs import BROWSER, FLAGS, QUICKSTART, Lab, Notebook, environment


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab of which nothing is left."""
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser for the tests of a file, of which nothing is left."""
    from playwright.sync_api import sync_playwright

    home, before = tmp_path_factory.mktemp("home"), set(psutil.Process().children(recursive=True))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=BROWSER, args=FLAGS, env=environment(home) | {"HOME": str(home)}
        )
        ours = set(psutil.Process().children(recursive=True)) - before
        yield browser
        browser.close()
    assert not psutil.wait_procs(ours, timeout=10)[1]


@pytest.fixture
def notebook(lab: Lab, browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """A notebook in the browser: the quickstart, or the one that the test names."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    notebook = Notebook(page, lab, getattr(request, "param", QUICKSTART) + "?reset")
    yield notebook
    if lab.process.poll() is None:
        notebook.picture(tmp_path / "end.png")
    page.close()
    lab.end_kernels()
