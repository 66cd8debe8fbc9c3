"""The panel of ``cluster.watch()`` in a page of its own, with rows that a test makes up: 64 ranks, GPUs, no news."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs import in_browser

from workbench.cluster.panel import widget

pytestmark = [pytest.mark.integration, pytest.mark.slow, in_browser]

N = 64
PAGE = """
const model = {
  values: %s, watchers: [], sent: [],
  get(name) { return this.values[name]; },
  send(content) { this.sent.push(content); },
  on(events, does) { this.watchers.push([events, does]); },
  set(values) {
    Object.assign(this.values, values);
    for (const [events, does] of this.watchers)
      if (Object.keys(values).some(name => events.split(" ").includes(`change:${name}`))) does();
  },
};
globalThis.model = model;
globalThis.ready = import(URL.createObjectURL(new Blob([%s], { type: "text/javascript" })))
  .then(panel => panel.default.render({ model, el: document.body }));
"""


def rows(step: int, gpu: bool = False) -> list[dict[str, Any]]:
    """Of 64 ranks, of which one is missing."""
    shared = {"missing": [], "step_s": 0.1, "gb_s": 0.5, "cpu": 1.0, "memory": 10**9, "line": "in the cell, line 3"}
    use = {"gpu": {"percent": 90, "memory": 2 * 10**9} if gpu else None}
    made = [{"rank": i, "state": "waits", "detail": "for 17 in x", **shared, **use} for i in range(N)]
    made[17] |= {"state": "computes", "detail": "3 s"}
    return [each | {"loop": {"step": step, "loss": 0.5}} for each in made]


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """With the panel in it."""
    page = browser.new_page()
    page.clock.install()
    values = {"rows": rows(0), "note": "", "said": "", "stacks": {}, "beat": 0, "ended": False}
    values["history"] = {str(i): {"cpu": [1.0] * 60, "gb_s": [0.5] * 60} for i in range(N)}
    script = (Path(widget.__file__).parent / "panel.js").read_text()
    css = (Path(widget.__file__).parent / "panel.css").read_text()
    page.set_content(f"<style>{css}</style><body></body>")
    page.evaluate(f"() => {{ {PAGE % (json.dumps(values), json.dumps(script))}; return ready.then(() => 0) }}")
    yield page
    page.close()


def test_sixty_four_ranks(page: Any) -> None:
    """Rows stay the same nodes while their texts change; columns of GPUs are there where a rank has one."""
    lines = page.locator("tbody tr")
    assert lines.count() == N
    lines.first.evaluate("each => each.id = 'first'")
    button = lines.nth(17).get_by_role("button")
    button.hover()
    page.mouse.down()
    page.evaluate("rows => model.set({ rows, beat: 1 })", rows(7))
    page.mouse.up()
    assert lines.first.get_attribute("id") == "first"
    assert lines.first.locator("td").nth(2).inner_text() == "7"
    assert "rank 17 computes 3 s" in page.locator(".wb-panel-detail").inner_text()
    assert page.locator("svg").count() == 2 * N
    assert not page.get_by_text("GPU %").is_visible()
    page.evaluate("rows => model.set({ rows })", rows(8, gpu=True))
    assert page.get_by_text("GPU %").is_visible()
    assert [lines.first.locator("td").nth(i).inner_text() for i in (8, 9)] == ["90", "2000"]


def test_no_news(page: Any) -> None:
    """A kernel that says nothing for long is gone; news take that back; a cluster that is down is something else."""
    note = page.locator(".wb-panel-note")
    page.clock.run_for(7_000)
    assert "No news for 7 s" in note.inner_text()
    page.evaluate("() => model.set({ beat: 1, note: 'ranks 0-63: here' })")
    assert note.inner_text() == "ranks 0-63: here"
    page.evaluate("() => model.set({ ended: true, note: 'The cluster is down.' })")
    page.clock.run_for(7_000)
    assert note.inner_text() == "The cluster is down."
