"""Pictures of the lessons: themes, titles, and what is no wait."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from workbench.course import drawing, figures
from workbench.course.simulator import simulate
from workbench.observe import drawing_kit

SVG = "{http://www.w3.org/2000/svg}"


def test_curves_can_be_read_on_a_dark_page() -> None:
    """White ground, black lines and letters are overruled there, within this picture alone; the rest stays."""
    root = ElementTree.fromstring(figures.curves({"a": [3, 2, 1]}, "step", "loss", "Falling").svg)
    (style,) = [each.text or "" for each in root.iter(f"{SVG}style") if "prefers-color-scheme" in (each.text or "")]
    assert root.get("class") == "wbf"
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", style.partition("dark){")[2])
    assert len(rules) == 3
    assert all(rule.split()[0] == ".wbf" for rule in rules)
    styles = [each.get("style", "") for each in root.iter()]
    assert any("stroke: currentColor" in one for one in styles)
    assert not any("#000000" in one for one in styles)
    for asked in re.findall(r'style\*="([^"]+)"', style):
        assert any(asked in one for one in styles), asked


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_long_title_is_whole(epochs: int) -> None:
    """In two lines where one has no room for it; nothing is cut off."""
    figure = drawing.coverage([[range(24)]] * epochs, 24, "Sample × epoch, one rank")
    root = ElementTree.fromstring(figure.svg)
    lines = [each.text or "" for each in root.iter(f"{SVG}text") if float(each.get("y", "99")) < 40]
    assert len(lines) == (1 if epochs == 1 else 2)
    assert " ".join(lines) == figure.alt


def test_an_early_irecv_does_not_wait() -> None:
    """Who has asked in advance computes on: no wait is drawn at the receiver. Who calls recv() does wait."""

    def exchange(comm: Any, ahead: bool) -> None:
        if comm.rank == 0:
            comm.compute(1e-3)
            comm.send(np.zeros(10), dest=1)
        elif ahead:
            request = comm.irecv(source=0)
            comm.compute(2e-3)
            request.wait()
        else:
            comm.recv(source=0)

    for ahead in (True, False):
        run = simulate(2, exchange, ahead)
        (message,) = run.messages
        assert (message.awaited < message.begin) is not ahead
        assert ("wait for rank 0" in drawing.space_time(run).svg) is not ahead


@pytest.mark.parametrize("matched", ["before the wait", "in the wait"])
def test_an_irecv_waits_where_its_wait_does(matched: str) -> None:
    """Its rank goes on after the irecv; from wait() on until the message begins it waits. So does an isend's."""

    def exchange(comm: Any) -> None:
        if comm.rank == 0:
            comm.compute(3e-3)
            comm.send(np.zeros(10_000), dest=1)
            comm.compute(3e-3)
            comm.recv(source=1)
        else:
            request = comm.irecv(source=0)
            comm.compute(1e-3)
            request.wait()
            sent = comm.isend(np.zeros(10_000), dest=0)
            comm.compute(1e-3 if matched == "in the wait" else 9e-3)
            sent.wait()

    run = simulate(2, exchange)
    came, went = run.messages
    assert came.awaited == pytest.approx(1e-3)
    assert came.begin == pytest.approx(3e-3)
    late = went.held < went.begin
    assert late is (matched == "in the wait")
    assert not late or went.held == pytest.approx(came.end + 1e-3)


@pytest.mark.parametrize("value", [86.3, 70.0, 88.9])
def test_the_line_at_the_best_crosses_no_number(value: float) -> None:
    """A number that would lie on the line is written into its bar."""
    root = ElementTree.fromstring(drawing.bars({"mine": value}, "%", "Efficiency", best=88.9).svg)
    (words,) = [each for each in root.iter(f"{SVG}text") if each.text == f"{value:g}"]
    (line,) = [each for each in root.iter(f"{SVG}line") if each.get("stroke-dasharray")]
    x, at, long = float(words.get("x") or 0), float(line.get("x1") or 0), 7.5 * len(words.text or "")
    begin = x - long if words.get("text-anchor") == "end" else x
    assert not begin < at < begin + long


def test_names_of_bars_lie_above_the_arrows() -> None:
    """An arrow that crosses a bar does not cross the letters on it: they are drawn later, with a rim."""
    run = simulate(4, lambda comm: comm.bcast(np.ones(100_000)))
    root = ElementTree.fromstring(drawing.space_time(run).svg)
    kinds = [each.get("class") for each in root if each.get("class") in ("wbt-message", "wbt-name")]
    assert kinds == sorted(kinds)
    assert {"wbt-message", "wbt-name"} == set(kinds)
    for name in root.iter(f"{SVG}g"):
        if name.get("class") == "wbt-name":
            assert name.get("paint-order") == "stroke"


def test_a_long_title_of_a_space_time_picture_is_whole() -> None:
    """It has a second line, and all else lies lower."""
    figure = drawing.space_time(
        simulate(4, lambda comm: comm.bcast(1.0)), "A title that needs more room than one line " * 2
    )
    root = ElementTree.fromstring(figure.svg)
    lines = [each.text or "" for each in root if each.tag == f"{SVG}text" and each.get("font-size") == "12"]
    assert " ".join(" ".join(lines).split()) == " ".join(figure.alt.split())
    assert len(lines) == 2
    legend = [float(each.get("y", "0")) for each in root if each.tag == f"{SVG}rect" and each.get("rx") == "2"]
    assert min(legend) > 18 + 14


def test_the_rows_of_a_coverage_are_epochs_or_what_they_are_named() -> None:
    """Rows that are no epochs say so, in the picture and in its text."""
    figure = drawing.coverage([[[0], [1]], [[0], [1, 1]]], samples=2, rows=("drop", "pad"))
    words = [each.text for each in ElementTree.fromstring(figure.svg).iter(f"{SVG}text")]
    assert {"drop", "pad"} <= set(words)
    assert "epoch" not in figure.alt
    assert "epoch 1: 2 of 2 samples" in drawing.coverage([[[0], [1]], [[0], [1]]], samples=2).alt


def test_each_colour_of_a_coverage_is_explained() -> None:
    """Every rank's colour, a sample of nobody's, and one of several ranks."""
    root = ElementTree.fromstring(drawing.coverage([[[0], [1, 1], [2, 0]]], samples=5).svg)
    words = [each.text for each in root.iter(f"{SVG}text")]
    for name in ("rank 0", "rank 1", "rank 2", "nobody", "several ranks"):
        assert name in words
    fills = [each.get("fill") for each in root.iter(f"{SVG}rect")]
    assert all(fills.count(fill) >= 2 for fill in drawing_kit.INKS[:2])


def test_values_that_double_have_their_labels() -> None:
    """Each has its own, as a reader writes it, and neighbours are equally far apart."""
    drawn = figures.curves({"a": [3, 2, 1]}, "kB", "ms", "Doubled", x=[256, 512, 1024], doubling=True)
    texts = list(ElementTree.fromstring(drawn.svg).iter(f"{SVG}text"))
    places = [float(each.get("x", "0")) for label in ("256", "512", "1,024") for each in texts if each.text == label]
    assert len(places) == 3
    assert places[1] - places[0] == pytest.approx(places[2] - places[1])
