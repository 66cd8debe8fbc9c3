"""A step's picture: what takes time has a bar of that length, and what it shows is said in words."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from workbench.course.schedules.picture import step_picture
from workbench.course.schedules.played import play
from workbench.observe.drawing_kit import STYLE
from workbench.simulate.steps import Span, TimedEvent, simulate

LAYERS = [Span("front", 1.0, 2.0, values=25), Span("back", 1.0, 2.0, values=100)]


def test_bars_are_as_long_as_what_they_show() -> None:
    """All bars of a row do not overlap, and a row's widths are its times in the scale of the axis."""
    found = play(LAYERS, [[(1, 0, 100)], [(0, 0, 25)]], lambda nbytes: nbytes / 100)
    figure = step_picture(found.events, found.step_s, "Two layers")
    root = ElementTree.fromstring(figure.svg)
    rows: dict[str, list[tuple[float, float]]] = {}
    for bar in root.iter("{http://www.w3.org/2000/svg}rect"):
        if bar.get("height") == "34":
            rows.setdefault(str(bar.get("y")), []).append((float(bar.get("x") or 0), float(bar.get("width") or 0)))
    compute, network = (sorted(rows[y]) for y in ("58", "104"))
    assert sum(width for _, width in compute) == pytest.approx(700, abs=0.1)  # computing and waiting fill the step
    assert sum(width for _, width in network) == pytest.approx(700 * 5 / 9, abs=0.1)  # 5 of 9 s
    for row in (compute, network):
        assert all(x + width <= after + 0.02 for (x, width), (after, _) in itertools.pairwise(row))
    assert figure.alt == ("Two layers: 9 s a step; the ranks wait 3 s, mostly for front; the network works 5 s")


def test_it_has_the_style_of_all_pictures_and_tells_each_bar() -> None:
    """Tooltips name what is computed, what is carried with its bytes, and what is waited for."""
    found = simulate(LAYERS, lambda nbytes: nbytes / 100)
    figure = step_picture(found.events, found.step_s, "Simulated")
    assert STYLE in figure.svg
    told = re.findall(r"<title>(.*?)</title>", figure.svg)
    assert "forward front: 1 s" in told
    assert "reduce back: 4 s, 400 bytes" in told
    assert "wait for front: 3 s" in told


def test_without_waits_that_is_said() -> None:
    """Where the network is fast and overlaps with forward."""
    found = play(LAYERS, [[(0, 0, 25)], [(1, 0, 100)]], lambda nbytes: 0.0)
    assert "the ranks never wait" in step_picture(found.events, found.step_s, "Free").alt


def test_events_without_a_backward_are_refused() -> None:
    """They are no step."""
    with pytest.raises(ValueError, match="no backward"):
        step_picture([TimedEvent("forward", ("a",), 0.0, 1.0)], 1.0, "None")
