"""What a reader writes in a page of the site, without Python."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workbench.course.build import ROOT

CELL = '<div class="cell"><div class="cell_input"><pre>1 + 1</pre></div></div>'
LONG = "total = " + " + ".join(["1"] * 200)
pytestmark = [pytest.mark.integration, pytest.mark.course, pytest.mark.slow]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, *args: Any) -> None:
        """See the base."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a page with one cell."""
    shutil.copytree(ROOT / "docs" / "_static" / "live", tmp_path / "live")
    (tmp_path / "page.html").write_text(f"<h1>Page</h1>{CELL}<script src='live/page.js'></script>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/page.html"
        server.shutdown()


def test_what_was_written_is_seen_when_the_page_opens(address: str, browser: Any) -> None:
    """Nothing is pressed; a page in which nobody wrote stays as it is; a long line is wrapped, and not scrolled."""
    page = browser.new_page()
    page.goto(address)
    page.get_by_role("button", name="Run this page in your browser").wait_for()
    assert page.locator(".cm-editor").count() == 0
    page.evaluate(
        "text => localStorage.setItem('workbench.live:/page.html', JSON.stringify({0: {was: '1 + 1', text}}))", LONG
    )
    page.reload()
    editor = page.get_by_label("Cell 1", exact=True)
    assert editor.inner_text() == LONG
    assert editor.evaluate("one => one.scrollWidth <= one.clientWidth")
