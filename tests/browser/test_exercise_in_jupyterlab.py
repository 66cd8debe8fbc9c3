"""What a learner does in JupyterLab: an exercise, blank, wrong, right; a player; sliders; predictions by keyboard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from labs import RING_EXERCISES, Lab, Notebook, choose_theme, in_browser, needs_make, visible

from workbench.course.tasks import task

pytestmark = [
    *[pytest.mark.integration, pytest.mark.course, pytest.mark.slow, pytest.mark.timeout(300)],
    *[needs_make, in_browser],
]

NAME = "03.reduce_scatter"
IMPORTS, BLANK, CHECK, SHOW = range(4)  # the first code cells of the exercises
TOO_WIDE = """
() => [...document.querySelectorAll('.jp-Notebook .jp-OutputArea-output, .jp-Notebook .jp-OutputArea')]
    .filter(each => each.scrollWidth > each.clientWidth).map(each => each.outerHTML.slice(0, 200))
"""


@pytest.mark.parametrize("notebook", [RING_EXERCISES], indirect=True)
def test_an_exercise_is_done(notebook: Notebook, tmp_path: Path) -> None:
    """The blank is told politely, a wrong answer is red and says where, the right one is green and can be drawn."""
    assert notebook.run(IMPORTS) == ""
    assert notebook.source(BLANK) == task(NAME).cell(solved=False).rstrip("\n")
    assert notebook.run(BLANK) == ""
    told = notebook.run(CHECK)
    assert "– not done yet: replace the line “your code here”" in told
    assert "✗" not in told
    assert "not done yet" in notebook.run(SHOW)

    right = task(NAME).cell(solved=True).rstrip("\n")
    notebook.paste(BLANK, right.replace("chunks[mine] +=", "chunks[mine] ="))
    assert notebook.run(BLANK) == ""
    told = notebook.run(CHECK)
    assert "✗ right: the chunk that comes replaces this rank's own: add it" in told
    assert "n = 2: rank 0, chunk 1: your result = rank 1; rank 0 missing" in told
    assert "first wrong in step 1, on rank 0: what was there of rank 0 is lost" in told
    assert "✓ runs" in told

    notebook.paste(BLANK, right)
    assert notebook.run(BLANK) == ""
    told = notebook.run(CHECK)
    assert [line.strip()[:8] for line in told.splitlines()[1:6]] == [
        *["✓ runs", "✓ right:", "✓ no dea", "✓ score:", "– real r"]
    ]
    notebook.run(SHOW)
    figure = notebook.page.locator(".jp-Notebook .wbp svg")  # the learner's own run, to be played
    figure.wait_for()
    assert figure.count() == 1
    assert figure.bounding_box()["width"] > 400
    assert notebook.page.evaluate(TOO_WIDE) == []
    notebook.picture(tmp_path / "exercise.png")


EXPLORE = "from workbench.course.calculators import explore\nexplore.{}()"


@pytest.mark.thorough
@pytest.mark.parametrize("notebook", [RING_EXERCISES], indirect=True)
def test_a_slider_redraws_the_picture(notebook: Notebook, tmp_path: Path) -> None:
    """Each slider has a name and says its value with its unit; the keyboard moves it, and the picture follows."""
    for which, words, before, after in (
        ("step", "ranks n", "n = 8,", "n = 16,"),
        ("memory", "ranks n", "n = 8,", "n = 16,"),
    ):
        notebook.paste(0, EXPLORE.format(which))
        notebook.run(0)
        page = notebook.page
        picture = page.locator(".jp-Notebook .widget-html svg")
        picture.wait_for()
        assert before in picture.inner_html()
        slider = page.locator(".jp-Notebook .widget-hslider", has_text=words)
        handle = visible(slider.locator(".noUi-handle"))
        handle.focus()
        handle.press("ArrowRight")
        page.locator(".jp-Notebook .widget-html svg text", has_text=after).first.wait_for()
        assert "16 ranks" in slider.inner_text()
        assert page.evaluate(TOO_WIDE) == []
        notebook.picture(tmp_path / f"{which}.png")


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
def test_a_guess_is_made_by_keyboard(lab: Lab, notebook: Notebook, tmp_path: Path) -> None:
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

    (kept,) = lab.checkout.glob("exercises/**/progress.json")
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
