"""Predictions as a learner makes them in JupyterLab: by keyboard, and in both themes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from labs import RING_EXERCISES, Notebook, choose_theme, in_browser, needs_make

pytestmark = [
    *[pytest.mark.integration, pytest.mark.course, pytest.mark.slow, pytest.mark.timeout(300)],
    *[needs_make, in_browser],
]

ASK = """from workbench.course.predictions import predict, reveal
predict("03.bytes", "How many <b>bytes</b>?", choices=["2 MB", "8 MB", "12 MB"])"""
ANSWER = 'reveal("03.bytes", "12 MB", "2(n - 1)/n of 8 MB")'
NUMBER = 'predict("03.count", "How many?", number="messages")'
ORDER = 'predict("03.order", "In what order?", order=["a", "b", "c"])'
# Texts whose ink and ground differ too little (WCAG AA: 4.5).
WEAK = """
() => {
    const colour = words => (words.match(/[\\d.]+/g) ?? []).map(Number)
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
    const weak = []
    for (const each of document.querySelectorAll('.wbq legend, .wbq label, .wbq p, .wbq button, .wbq span')) {
        if (!each.getClientRects().length || !each.textContent.trim()) continue
        let at = each
        while ((colour(getComputedStyle(at).backgroundColor)[3] ?? 1) < 1) at = at.parentElement
        const [low, high] = [colour(getComputedStyle(each).color), colour(getComputedStyle(at).backgroundColor)]
            .map(light).sort((a, b) => a - b)
        if ((high + 0.05) / (low + 0.05) < 4.5) weak.push([each.textContent, low, high])
    }
    return weak
}
"""


@pytest.mark.parametrize("notebook", [RING_EXERCISES], indirect=True)
def test_a_guess_is_made_by_keyboard(notebook: Notebook, tmp_path: Path) -> None:
    """The answer's cell was run too early: it opens with the guess. The guess is in the file and cannot be changed."""
    page = notebook.page
    for cell, text in enumerate([ASK, ANSWER, NUMBER, ORDER]):
        notebook.paste(cell, text)
        notebook.run(cell)
    form, answer, number, order = (page.locator(".wbq").nth(i) for i in range(4))
    order.wait_for()
    assert "First make a guess" in answer.inner_text()
    assert "12 MB" not in answer.inner_text()
    assert "How many <b>bytes</b>?" in form.inner_text()

    form.get_by_role("radio", name="2 MB", exact=True).focus()
    for key in ("Space", "ArrowDown", "Tab", "Enter"):
        page.keyboard.press(key)
    answer.get_by_text("Not as you said").wait_for()
    assert [answer.locator("strong").nth(i).inner_text() for i in (0, 1)] == ["8 MB", "12 MB"]
    assert form.get_by_role("radio", name="12 MB").is_disabled()

    number.get_by_label("Your guess").fill("many")
    page.keyboard.press("Enter")
    number.get_by_text("is no number").wait_for()
    page.keyboard.press("Enter")  # and again
    number.get_by_text("is no number").wait_for()
    number.get_by_label("Your guess").fill("1,200")
    page.keyboard.press("Enter")
    number.get_by_text("Stored: 1,200 messages").wait_for()

    order.get_by_role("button", name="Move down: a").focus()
    for key in ("Enter", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Move down: a"
    order.get_by_role("button", name="Store my guess").click()
    order.get_by_text("Stored: b → c → a").wait_for()
    place = "[...document.querySelectorAll('.jp-Notebook .jp-Cell')].findIndex(cell => cell.matches('{}'))"
    active, here = place.format(".jp-mod-active"), page.evaluate(place.format(':has([aria-label="Your order"])'))
    for keys, moved in ((["ArrowUp"], -1), (["Shift+Enter"], 1), (["Escape", "ArrowUp"], -1)):
        for key in keys:  # they are the notebook's again: after a guess, and where the form has the focus
            page.keyboard.press(key)
        page.wait_for_function(f"{active} === {here + moved}")
        order.get_by_role("button", name="Move down: a").focus()

    (kept,) = tmp_path.glob("checkout/exercises/**/progress.json")
    found = json.loads(kept.read_text())["predictions"]
    assert {name: one["last"] for name, one in found.items()} == {
        "03.bytes": "8 MB",
        "03.count": 1200,
        "03.order": ["b", "c", "a"],
    }
    for theme in ("light", "dark"):
        choose_theme(page, theme)
        assert page.evaluate(WEAK) == []
        notebook.picture(tmp_path / f"{theme}.png")
