"""An exercise as a learner does it in JupyterLab: blank, wrong, right; and the player of the lesson."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from labs import RING, RING_EXERCISES, Notebook, choose_theme, in_browser, needs_make

from workbench.course.tasks import task

pytestmark = [
    *[pytest.mark.integration, pytest.mark.course, pytest.mark.slow, pytest.mark.timeout(300)],
    *[needs_make, in_browser],
]

NAME = "03.reduce_scatter"
IMPORTS, BLANK, CHECK, SHOW = range(4)  # the first code cells of the exercises
# Of one player: its box and the page's width, boxes of its parts, and every text with its ink and what it stands on.
MEASURE = """
player => {
    const box = each => { const b = each.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] }
    const shown = each => getComputedStyle(each).visibility == 'visible' && each.getClientRects().length > 0
    const parts = [...player.querySelectorAll('svg, .wbp-line, .wbp-bar > *')].filter(shown)
    const colour = words => (words.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number)
    const over = (upper, lower) => [0, 1, 2].map(i => (upper[3] ?? 1) * upper[i] + (1 - (upper[3] ?? 1)) * lower[i])
    const behind = each => {  // all backgrounds from the text's element upwards, laid over white
        const all = []
        for (let at = each; at; at = at.parentElement) all.push(colour(getComputedStyle(at).backgroundColor))
        return all.reduceRight((lower, upper) => over(upper, lower), [255, 255, 255])
    }
    const under = each => {  // the last box in the picture that was drawn below the text's middle
        const [left, top, right, bottom] = box(each), [x, y] = [(left + right) / 2, (top + bottom) / 2]
        const below = [...player.querySelectorAll('svg > rect, svg g rect')].filter(rect => {
            const [l, t, r, b] = box(rect), filled = shown(rect) && getComputedStyle(rect).fill != 'none'
            const before = rect.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING
            return before && filled && l <= x && x <= r && t <= y && y <= b
        })
        return over(colour(getComputedStyle(below.at(-1)).fill), behind(player))
    }
    const texts = []
    for (const each of player.querySelectorAll('button, select, span, label, .wbp-line, svg text')) {
        if (!shown(each) || !each.textContent.trim()) continue
        const drawn = each.tagName == 'text', style = getComputedStyle(each)
        const ground = drawn ? under(each) : behind(each)
        texts.push([each.textContent, over(colour(drawn ? style.fill : style.color), ground), ground])
    }
    const named = parts.map(each => [each.outerHTML.slice(0, 60), box(each)])
    return {box: box(player), page: innerWidth, parts: named, texts}
}
"""
ACTIVE = "[...document.querySelectorAll('.jp-Cell')].findIndex(each => each.matches('.jp-mod-active'))"
TOO_WIDE = """
() => [...document.querySelectorAll('.jp-Notebook .jp-OutputArea-output, .jp-Notebook .jp-OutputArea')]
    .filter(each => each.scrollWidth > each.clientWidth).map(each => each.outerHTML.slice(0, 200))
"""


def contrast(one: list[float], other: list[float]) -> float:
    """WCAG's ratio of two colours, each of three numbers up to 255."""

    def luminance(colour: list[float]) -> float:
        parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def apart(one: list[float], other: list[float]) -> bool:
    """Do two boxes (left, top, right, bottom) have no pixel in common?"""
    slack = 0.5
    across = one[2] <= other[0] + slack or other[2] <= one[0] + slack
    return across or one[3] <= other[1] + slack or other[3] <= one[1] + slack


def examine(player: Any) -> None:
    """No part of a player lies over another or outside, and every text can be read."""
    found = player.evaluate(MEASURE)
    left, top, right, bottom = found["box"]
    assert 0 <= left < right <= found["page"]
    assert len(found["parts"]) == 10
    for i, (name, box) in enumerate(found["parts"]):
        assert box[2] - box[0] > 10, name
        assert box[3] - box[1] > 10, name
        assert left <= box[0] <= box[2] <= right, name
        assert top <= box[1] <= box[3] <= bottom, name
        for other, place in found["parts"][:i]:
            assert apart(box, place), (name, other)
    assert len(found["texts"]) > 15
    weak = [(text, ink, ground) for text, ink, ground in found["texts"] if contrast(ink, ground) < 4.5]
    assert weak == []


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


@pytest.mark.thorough  # test_player_in_browser.py shows the player itself
@pytest.mark.parametrize("notebook", [RING], indirect=True)
def test_the_player_in_a_lesson(notebook: Notebook, tmp_path: Path) -> None:
    """Two players, worked by mouse and keyboard; in light and dark every part has its place and can be read."""
    page, n = notebook.page, len(notebook.cells())
    notebook.choose("Run", "Run All Cells")
    notebook.wait(n, counted=n)
    ring, messages = page.locator(".wbp").nth(0), page.locator(".wbp").nth(1)
    messages.wait_for()
    assert page.locator(".wbp").count() == 2
    for player in (ring, messages):
        player.scroll_into_view_if_needed()
        before = player.locator("svg").screenshot()
        for _ in range(4):
            player.get_by_role("button", name="Step on").click()
        assert player.locator("svg").screenshot() != before
    assert ring.locator(".wbp-clock").inner_text() == "step 4 of 6"
    assert ring.get_attribute("data-time") == "4"

    before = ring.locator("svg").screenshot()
    ring.get_by_role("slider", name="Time").focus()
    marked = page.evaluate(ACTIVE)
    for key in ("ArrowRight", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    page.wait_for_function("document.querySelector('.wbp').dataset.time == 3", timeout=5_000)
    assert ring.locator("svg").screenshot() != before
    ring.get_by_role("button", name="Play").focus()
    page.keyboard.press("Space")
    page.wait_for_function("Number(document.querySelector('.wbp').dataset.time) > 3", timeout=10_000)
    page.keyboard.press("Enter")
    assert len(notebook.cells()) == n
    assert page.evaluate(ACTIVE) == marked  # the arrows were for the player, not for the notebook

    messages.get_by_role("slider", name="Time").fill("110")
    assert messages.locator(".wbp-clock").inner_text() == "726 µs of 1.32 ms"
    for theme in ("light", "dark"):
        choose_theme(page, theme)
        for i, player in enumerate((ring, messages)):
            player.scroll_into_view_if_needed()
            examine(player)
            player.screenshot(path=tmp_path / f"{theme}{i}.png")
        assert page.evaluate(TOO_WIDE) == []
        notebook.picture(tmp_path / f"{theme}.png")
