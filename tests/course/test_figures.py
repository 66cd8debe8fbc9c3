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
