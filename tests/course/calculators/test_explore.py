"""The sliders, and what a page without a kernel shows."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from workbench.course.calculators import explore, panel
from workbench.course.calculators.explore import JOBS, STEPS
from workbench.course.calculators.lanes import lanes
from workbench.course.calculators.memory import MemorySettings, Sharding
from workbench.course.calculators.memory import calculate as kept
from workbench.course.calculators.panel import Knob
from workbench.course.calculators.stacks import stacks
from workbench.course.calculators.steps import Training, calculate
from workbench.observe.figure import Figure

VIEW = "application/vnd.jupyter.widget-view+json"
BOTH = pytest.mark.parametrize(
    ("sliders", "still"),
    [(explore.step, lambda: lanes(STEPS, "100 MB of gradients on 8 ranks")), (explore.memory, lambda: stacks(JOBS))],
    ids=["step", "memory"],
)


def test_the_three_steps_teach_three_things() -> None:
    """Latency-bound, hidden, and bandwidth-bound; nothing but α, β and the buckets differs."""
    steps = [calculate(training) for training in STEPS.values()]
    assert [step.verdict for step in steps] == ["latency-bound", "hidden", "bandwidth-bound"]
    assert len({(one.ranks, one.gradient_bytes, one.compute_s, one.network) for one in STEPS.values()}) == 1


def test_the_three_jobs_teach_three_things() -> None:
    """Sharding saves a tenth at most; the optimizer's state is enough to fit; only all three are."""
    fits = {name: [kept(job, way).total <= job.device_bytes for way in Sharding] for name, job in JOBS.items()}
    assert list(fits.values()) == [[True] * 4, [False, True, True, True], [False, False, False, True]]
    first = next(iter(JOBS.values()))
    assert kept(first, Sharding.PARAMETERS).total > 0.9 * kept(first, Sharding.PLAIN).total


@BOTH
def test_what_is_shown_has_the_still_picture_in_it(sliders: Callable[[], Any], still: Callable[[], Figure]) -> None:
    """The output offers the widget, the three settings, and words; the same bytes each time."""
    pytest.importorskip("ipywidgets")
    shown = sliders()
    data = shown._repr_mimebundle_()
    assert set(data) == {VIEW, "image/svg+xml", "text/plain"}
    assert data["image/svg+xml"] == still().svg
    assert data["text/plain"] == still().alt == repr(shown)
    shown.close()


@BOTH
def test_every_stop_of_every_slider_can_be_drawn(sliders: Callable[[], Any], still: Callable[[], Figure]) -> None:
    """From one end to the other of each, the picture is an SVG, and labelled with what was set."""
    pytest.importorskip("ipywidgets")
    shown = sliders()
    for knob in shown.knobs.values():
        begins = knob.value
        for _, stop in (knob.options[0], knob.options[-1]):
            knob.value = stop
            ET.fromstring(shown.shown.value)
        knob.value = begins
    assert all(knob.description for knob in shown.knobs.values())
    shown.close()


@BOTH
def test_without_ipywidgets_there_is_the_picture(
    sliders: Callable[[], Any],
    still: Callable[[], Figure],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing fails where widgets are not installed: the three settings come back, and a line says why."""
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    panel._panel_class.cache_clear()
    assert sliders().svg == still().svg
    assert "pip install ipywidgets" in capsys.readouterr().out


def test_sliders_begin_at_the_nearest_stop() -> None:
    """What was asked for is rounded by ratio; 0 stays 0."""
    asked = Training(ranks=500, alpha_s=0.0, beta_s=1 / 3e9, gradient_bytes=553e6, network="like VGG-16")
    begins = {knob.name: knob.value for knob in explore.step_knobs(asked)}
    assert begins == {
        "ranks": 512,
        "compute_s": 0.1,
        "alpha_s": 0.0,
        "beta_s": 1 / 2e9,
        "gradient_bytes": 5e8,
        "bucket_bytes": 10_000_000,
        "network": "like VGG-16",
    }


def test_a_knob_that_begins_nowhere_is_refused() -> None:
    """An error names the value."""
    with pytest.raises(ValueError, match=r"ranks begins at 3, which is none of 2 ranks"):
        Knob("ranks", "n", {"2 ranks": 2}, 3)


@pytest.mark.parametrize("figure", [lanes(STEPS), stacks(JOBS)], ids=["lanes", "stacks"])
def test_pictures_fit_and_say_what_they_show(figure: Figure) -> None:
    """Nothing is drawn, and no text ends, outside of the picture; the text is its label."""
    root = ET.fromstring(figure.svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert root.attrib["aria-label"] == figure.alt
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        place: Mapping[str, float] = {name: float(box.attrib.get(name, 0)) for name in ("x", "y", "width", "height")}
        assert place["x"] + place["width"] <= width
        assert place["y"] + place["height"] <= height
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        if not text.attrib.get("text-anchor"):
            assert float(text.attrib["x"]) + 5.8 * len(text.text or "") <= width, text.text


def test_a_bar_is_as_long_as_its_bytes() -> None:
    """Of one setting all bars have one scale: their lengths are in the ratios of the formula."""
    job = MemorySettings(parameters=7_500_000_000, ranks=64)
    root = ET.fromstring(stacks({"": job}).svg)
    lengths: dict[str, float] = {}
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        title, box = group.find("{*}title"), group.find("{*}rect")
        assert title is not None
        assert title.text is not None
        assert box is not None
        way = title.text.split(",")[0]
        lengths[way] = lengths.get(way, 0.0) + float(box.attrib["width"])
    totals = {way.value: kept(job, way).total for way in Sharding}
    for way, total in totals.items():
        assert lengths[way] / lengths["plain"] == pytest.approx(total / totals["plain"], abs=0.001)
