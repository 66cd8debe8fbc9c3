"""Pictures of the lessons: themes, titles, and what is no wait."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from workbench.course import drawing, figures
from workbench.course.simulator import simulate

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
