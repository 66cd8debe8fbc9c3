"""What a reader writes in a page of the site, without Python."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.course.build import ROOT

CELL = '<div class="cell"><div class="cell_input"><pre>1 + 1</pre></div></div>'
PAGE = f"<h1>Page</h1>{CELL}<script src='live/page.js'></script>"
LONG = "total = " + " + ".join(["1"] * 200)
WRITTEN = "text => localStorage.setItem('workbench.live:/page.html', JSON.stringify({0: {was: '1 + 1', text}}))"
pytestmark = [pytest.mark.integration, pytest.mark.course, pytest.mark.slow]


def test_what_was_written_is_seen_when_the_page_opens(browser: Any) -> None:
    """Nothing is pressed; a page in which nobody wrote stays as it is; a long line is wrapped, and not scrolled."""
    page = browser.new_page()
    files = ROOT / "docs" / "_static" / "live"
    page.route("**/live/*", lambda route: route.fulfill(path=files / route.request.url.rpartition("/")[2]))
    page.route("**/page.html", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
    page.goto("http://localhost/page.html")
    page.get_by_role("button", name="Run this page in your browser").wait_for()
    assert page.locator(".cm-editor").count() == 0
    page.evaluate(WRITTEN, LONG)
    page.reload()
    editor = page.get_by_label("Cell 1", exact=True)
    assert editor.inner_text() == LONG
    assert editor.evaluate("one => one.scrollWidth <= one.clientWidth")
