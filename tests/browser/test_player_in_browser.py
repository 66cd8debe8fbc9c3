"""The player in a page of its own: what is to be seen at a time is what had happened by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labs import in_browser
from wrong_answers import load

from workbench.cluster.notebook_timeline import timeline
from workbench.collectives.ring import naive_allreduce, ring_allreduce
from workbench.course import drawing
from workbench.course.provenance.explain import replay
from workbench.course.provenance.picture import grid
from workbench.course.simulator import Run, simulate
from workbench.course.tasks import task
from workbench.job import api
from workbench.observe import player
from workbench.observe.figure import Figure

pytestmark = [pytest.mark.integration, pytest.mark.course, in_browser]

FOLDER = Path(player.__file__).parent
# As anywidget does it: the module's default export renders a model into an element.
SHOW = """
async ([source, style, values]) => {
    const place = document.body.appendChild(document.createElement("div"))
    document.head.appendChild(document.createElement("style")).textContent = style
    const {default: widget} = await import(URL.createObjectURL(new Blob([source], {type: "text/javascript"})))
    window.leave = widget.render({model: {get: name => values[name]}, el: place})
}
"""
BEGUN = """
() => [...document.querySelectorAll('.wbt-message')].filter(each => getComputedStyle(each).visibility == 'visible')
    .map(each => [Number(each.dataset.begin), Number(each.dataset.end), each.hasAttribute('clip-path')])
"""
WEIGHTS = """
() => [...document.querySelectorAll('[data-says] > .wbt-text')].map(each => getComputedStyle(each).fontWeight)
"""
STEPS = "() => [...document.querySelectorAll('[data-says]')].map(each => getComputedStyle(each).visibility)"
RECORD = """
() => {
    window.seen = []
    const look = () => window.seen.push(Number(document.querySelector('.wbp').dataset.time))
    new MutationObserver(look).observe(document.querySelector('.wbp'), {attributeFilter: ['data-time']})
}
"""


class Page:
    """A player in a page.

    Args:
        browser: playwright's.
        figure: what it plays.
        options: of the page.
    """

    def __init__(self, browser: Any, figure: Figure, **options: Any) -> None:
        self.errors: list[str] = []
        self.page = browser.new_page(viewport={"width": 900, "height": 700}, **options)
        self.page.set_default_timeout(15_000)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.errors.append(request.url) if "http" in request.url else None)
        self.page.clock.install(time=0)
        self.page.clock.pause_at(1)  # from here on time passes when the test says so
        source, style = ((FOLDER / name).read_text(encoding="utf-8") for name in ("player.js", "player.css"))
        self.page.evaluate(SHOW, [source, style, {"svg": figure.svg, "seconds": 8}])

    @property
    def time(self) -> float:
        """What the player shows, in µs or steps."""
        return float(self.page.locator(".wbp").get_attribute("data-time"))

    @property
    def line(self) -> str:
        return str(self.page.locator(".wbp-line").inner_text())

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def slide(self, value: float) -> None:
        self.page.get_by_role("slider", name="Time").fill(str(value))

    def visible(self) -> list[list[Any]]:
        """Messages that are shown: begin, end, and whether they are cut off."""
        return list(self.page.evaluate(BEGUN))


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Page]]:
    """Open players; none may raise an error in the page, or ask for anything elsewhere."""
    pages: list[Page] = []

    def opened(figure: Figure, **options: Any) -> Page:
        pages.append(Page(browser, figure, **options))
        return pages[-1]

    yield opened
    assert [each.errors for each in pages] == [[] for _ in pages]
    for each in pages:
        each.page.close()


def allreduced(way: Callable[..., None], n: int = 4) -> Run:
    """A simulated run of it."""
    return simulate(n, lambda comm: way(comm, np.full(100_000, float(comm.rank))))


@pytest.mark.parametrize("way", [ring_allreduce, naive_allreduce])
def test_at_each_time_there_is_what_had_begun(show: Callable[..., Page], way: Callable[..., None]) -> None:
    """At any place of the slider the messages that had begun are shown, and those that had not arrived are cut off."""
    run = allreduced(way)
    seen = show(drawing.space_time(run))
    assert seen.visible() == []
    assert seen.line == "Press Play, or Step."
    for notch in (1, 37, 50, 100, 133, 199, 200):
        seen.slide(notch)
        now = run.time_s * 1e6 * notch / 200
        assert seen.time == pytest.approx(now)
        times = [(one.begin * 1e6, one.end * 1e6) for one in run.messages]
        expected = [(begin, end, end > now + 1e-6) for begin, end in times if begin < now - 1e-6]
        assert [tuple(one) for one in sorted(seen.visible())] == [
            (pytest.approx(begin), pytest.approx(end), cut) for begin, end, cut in sorted(expected)
        ]


def test_steps_are_the_ends_of_messages(show: Callable[..., Page]) -> None:
    """Step goes to the next time a message arrives and says which; Back goes to the one before; Start to the begin."""
    run = allreduced(naive_allreduce)
    seen = show(drawing.space_time(run))
    ends = sorted({round(one.end * 1e6, 6) for one in run.messages})
    assert len(ends) == 6
    for end in [*ends, ends[-1]]:
        seen.press("Step on")
        assert seen.time == pytest.approx(end)
        (arrived,) = (one for one in run.messages if one.end * 1e6 == pytest.approx(end))
        assert seen.line == f"rank {arrived.source} → rank {arrived.dest}: 800 kB, 820 µs"
    for end in [*reversed(ends[:-1]), 0.0, 0.0]:
        seen.press("Back one step")
        assert seen.time == pytest.approx(end)
    seen.slide(120)
    seen.press("Rewind: back to the beginning")
    assert seen.time == 0


def test_a_learners_wrong_ring_is_played(show: Callable[..., Page]) -> None:
    """Up to the first wrong step nothing is red; there the field is, and the line below says what is wrong."""
    coded = task("03.ring_allreduce").coded
    run = replay(load("w03").adds_in_the_second_half_too, coded, 4, 8)
    seen = show(grid(run, "yours"))
    red = "() => [...document.querySelectorAll('rect.wbt-wrong')].map(each => getComputedStyle(each).visibility)"
    for step in range(4):
        assert set(seen.page.evaluate(red)) == {"hidden"}, step
        seen.press("Step on")
    assert seen.page.evaluate(red).count("visible") == 1
    assert seen.line.startswith("step 4: on rank 0 rank 0 is added a second time, in line 10: chunks[")
    for _ in range(3):
        seen.press("Step on")
    assert seen.line.startswith("returned: rank 0, chunk 0: your result = rank 0 twice")


@pytest.mark.parametrize("n", [1, 4])
def test_ring_step_by_step(show: Callable[..., Page], n: int) -> None:
    """After step s there are s + 1 pictures, the newest in bold, and what is said to move is what the ring sends."""
    seen = show(drawing.ring_chunks(n))
    steps = 2 * (n - 1)
    for step in range(steps + 1):
        states = seen.page.evaluate(STEPS)
        assert states == ["visible"] * (step + 1) + ["hidden"] * (steps - step)
        weights = seen.page.evaluate(WEIGHTS)
        assert [weight == "700" for weight in weights] == [i == step for i in range(steps + 1)]
        assert seen.page.locator(".wbp-clock").inner_text() == f"step {step} of {steps}"
        if step:
            half = step >= n
            number = step - (n - 1 if half else 0)
            for rank in range(min(n, 4)):
                assert f"chunk {(rank + half - number + 1) % n} to rank {(rank + 1) % n}" in seen.line
        seen.press("Step on")


def test_playing_takes_the_time_that_was_said(show: Callable[..., Page]) -> None:
    """At speed 1 it takes the seconds asked for, at speed 4 a quarter; it can be stopped, and starts anew."""
    run = allreduced(ring_allreduce)
    seen = show(drawing.space_time(run))
    seen.press("Play")
    seen.page.clock.run_for(4000)
    assert seen.time == pytest.approx(run.time_s * 1e6 / 2, rel=0.02)
    seen.press("Pause")
    stopped = seen.time
    seen.page.clock.run_for(4000)
    assert seen.time == stopped
    seen.page.get_by_label("Speed").select_option("4")
    seen.press("Play")
    seen.page.clock.run_for(1100)
    assert seen.time == pytest.approx(run.time_s * 1e6)
    assert seen.page.get_by_role("button", name="Play", exact=True).count() == 1
    seen.press("Play")
    seen.page.clock.run_for(100)
    assert 0 < seen.time < run.time_s * 1e6 / 4
    seen.page.evaluate("window.leave()")  # the notebook takes the view away
    stopped = seen.time
    seen.page.clock.run_for(1000)
    assert seen.time == stopped


def test_less_motion(show: Callable[..., Page]) -> None:
    """Who asked the system for less motion sees stop after stop, and nothing between."""
    run = allreduced(ring_allreduce)
    seen = show(drawing.space_time(run), reduced_motion="reduce")
    seen.page.evaluate(RECORD)
    seen.press("Play")
    for _ in range(100):
        seen.page.clock.run_for(100)
    ends = sorted({round(one.end * 1e6, 6) for one in run.messages})
    assert seen.page.evaluate("seen") == pytest.approx(ends)


def test_keyboard(show: Callable[..., Page]) -> None:
    """Tab reaches every control in order, each has a name, and Space, Enter and the arrows work them."""
    seen = show(drawing.ring_chunks(4))
    names = []
    for _ in range(8):
        seen.page.keyboard.press("Tab")
        names.append(seen.page.evaluate("document.activeElement.ariaLabel"))
    controls = ["Rewind: back to the beginning", "Back one step", "Play", "Step on", "Time", "Speed"]
    assert names == [*controls, "Zoom out", "Zoom in"]
    for _ in range(4):
        seen.page.keyboard.press("Shift+Tab")
    seen.page.keyboard.press("Space")
    seen.page.keyboard.press("Enter")
    assert seen.time == 2
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("ArrowLeft")
    assert seen.time == 3
    assert seen.page.get_by_role("slider").get_attribute("aria-valuetext") == "step 3 of 6"
    seen.page.keyboard.press("End")
    assert seen.time == 6


def test_zoom_stretches_time_alone(show: Callable[..., Page]) -> None:
    """At zoom z a bar is z times as long and as high as before, the present is in view, and nothing leaves the plot."""
    run = allreduced(ring_allreduce)
    seen = show(drawing.space_time(run))
    seen.slide(100)
    bar = seen.page.locator("[data-rank] ~ g [data-tip^='send'] rect, g[data-tip^='send'] rect").nth(9)
    before, box = bar.bounding_box(), seen.page.locator("svg").bounding_box()
    for _ in range(2):
        seen.press("Zoom in")
    after = bar.bounding_box()
    assert after["width"] == pytest.approx(4 * before["width"], rel=0.01)
    assert after["height"] == pytest.approx(before["height"], rel=0.01)
    assert seen.page.locator("svg").bounding_box() == box
    hand = seen.page.locator(".wbp-hand").bounding_box()
    assert box["x"] + box["width"] * 0.3 < hand["x"] < box["x"] + box["width"] * 0.8
    for _ in range(9):
        seen.press("Zoom in")
    seen.slide(200)
    hand = seen.page.locator(".wbp-hand").bounding_box()
    assert hand["x"] < box["x"] + box["width"]
    for _ in range(9):
        seen.press("Zoom out")
    assert bar.bounding_box() == pytest.approx(before)


def test_pointer_tells(show: Callable[..., Page]) -> None:
    """At the pointer stand the words of the static picture's tooltip, wholly within the player."""
    figure = drawing.space_time(allreduced(ring_allreduce))
    seen = show(figure)
    seen.slide(200)
    room = seen.page.locator(".wbp").bounding_box()
    tip = seen.page.locator(".wbp-tip")
    assert not tip.is_visible()
    bars = seen.page.locator("g[data-tip^='send'], g[data-tip^='receive']")
    for i in range(bars.count()):
        place = bars.nth(i).bounding_box()
        seen.page.mouse.move(place["x"] + place["width"] * 0.9, place["y"] + place["height"] / 2)
        assert tip.inner_text() in figure.svg
        box = tip.bounding_box()
        assert room["x"] <= box["x"] <= box["x"] + box["width"] <= room["x"] + room["width"] + 1
        assert room["y"] <= box["y"] <= box["y"] + box["height"] <= room["y"] + room["height"] + 1
    seen.page.mouse.move(5, 690)
    assert not tip.is_visible()


def test_recorded_timeline(show: Callable[..., Page]) -> None:
    """What real ranks recorded is played by the same player, and it says what each rank is in."""

    def job() -> Any:
        for i in range(3):
            api.allreduce(np.ones(100_000), name=f"x{i}")
        return timeline()

    picture = api.run_threads(2, job)[0]
    seen = show(picture)
    ends = {span.end for track in picture.tracks for bar in track.bars for span in (*bar.spans, *track.compute)}
    seen.press("Step on")
    assert min(abs(seen.time - end) for end in ends) < 1e-3
    assert seen.line.startswith("rank ")
    seen.slide(200)
    assert seen.page.locator(".wbp-future").count() == 0
    assert "of" in seen.page.locator(".wbp-clock").inner_text()
