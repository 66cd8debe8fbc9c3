"""What the player is given: the static picture with its times, and that picture again where there is no player."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import numpy as np
import pytest

from workbench.cluster.notebook_timeline import timeline
from workbench.collectives.ring import naive_allreduce, ring_allreduce
from workbench.course import build, drawing
from workbench.course.simulator import Run, simulate
from workbench.job import api
from workbench.observe import drawing_kit, player
from workbench.observe.figure import Figure
from workbench.observe.player import play
from workbench.observe.tracks import length

SVG = "{http://www.w3.org/2000/svg}"
FOLDER = Path(player.__file__).parent
VIEW = "application/vnd.jupyter.widget-view+json"


def allreduced(way: Any, n: int) -> Run:
    """A simulated run, with some computing in it."""

    def job(comm: Any) -> None:
        comm.compute(1e-5 * (1 + comm.rank))
        way(comm, np.ones(50_000))

    return simulate(n, job)


def times(root: ElementTree.Element, kind: str) -> list[tuple[float, float]]:
    """Begin and end of the parts of a picture whose class is ``kind``, or that have no class."""
    found = [each for each in root.iter(f"{SVG}g") if each.get("data-begin") and each.get("class", "") == kind]
    return sorted((float(each.get("data-begin", "")), float(each.get("data-end", ""))) for each in found)


@pytest.mark.parametrize("way", [ring_allreduce, naive_allreduce])
@pytest.mark.parametrize("n", [2, 5])
def test_every_message_is_in_the_picture_with_its_times(way: Any, n: int) -> None:
    """Each message has one arrow, which begins and ends when it did, and nothing is later than the axis."""
    run = allreduced(way, n)
    root = ElementTree.fromstring(drawing.space_time(run).svg)
    expected = sorted((one.begin * 1e6, one.end * 1e6) for one in run.messages)
    assert times(root, "wbt-message") == [(pytest.approx(begin), pytest.approx(end)) for begin, end in expected]
    computed = [(pytest.approx(one.begin * 1e6), pytest.approx(one.end * 1e6)) for one in run.computed]
    assert len(computed) == n
    bars = times(root, "")
    assert all(any(bar == one for bar in bars) for one in computed)
    left, right, whole = map(float, root.get("data-axis", "").split())
    assert whole == pytest.approx(run.time_s * 1e6)
    assert max(end for _, end in bars) <= whole
    # Where it is drawn and when it happens are the same thing.
    for arrow in root.iter(f"{SVG}g"):
        if arrow.get("class") == "wbt-message":
            line = arrow.find(f"{SVG}line")
            assert line is not None
            for place, time in (("x1", "data-begin"), ("x2", "data-end")):
                x = left + float(arrow.get(time, "")) / whole * (right - left)
                assert float(line.get(place, "")) == pytest.approx(x, abs=0.01)


def test_every_phase_of_a_recorded_timeline_has_its_times() -> None:
    """Each phase of each batch on each rank, and each time without any, is a part of the picture with its times."""

    def job() -> Any:
        for i in range(4):
            api.allreduce(np.ones(1000), name=f"x{i}")
        return timeline()

    picture = api.run_threads(2, job)[1]
    root = ElementTree.fromstring(picture.svg)
    spans = [span for track in picture.tracks for bar in track.bars for span in bar.spans]
    spans += [span for track in picture.tracks for span in track.compute]
    found = times(root, "")
    for span in spans:
        assert (round(span.begin, 6), round(span.end, 6)) in found
    marks = sum(bar.last == track.rank for track in picture.tracks for bar in track.bars)
    assert len(found) == len(spans) + marks
    assert float(root.get("data-axis", "").split()[2]) == pytest.approx(length(picture.tracks))
    assert [each.get("data-rank") for each in root.iter(f"{SVG}g") if each.get("data-rank")] == ["0", "1"]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_the_ring_has_a_part_for_each_step(n: int) -> None:
    """The begin and 2(n - 1) steps, of which each frames the n chunks that come in it; the end is complete."""
    root = ElementTree.fromstring(drawing.ring_chunks(n).svg)
    stages = [each for each in root.iter(f"{SVG}g") if each.get("data-says")]
    assert [each.get("data-begin") for each in stages] == [str(step) for step in range(2 * n - 1)]
    for step, stage in enumerate(stages):
        framed = [each for each in stage.iter(f"{SVG}rect") if each.get("class")]
        assert len(framed) == (n if step else 0)
    counts = [each.text for each in stages[-1].iter(f"{SVG}text")][1:]
    assert counts == [str(n)] * n * n


@pytest.mark.parametrize("part", [0.0, 0.2, 1 / 3, 0.5, 0.6, 2 / 3, 0.8, 1.0])
def test_numbers_in_chunks_can_be_read(part: float) -> None:
    """Ink and ground of a chunk differ by a contrast of 4.5 (WCAG AA), however full it is."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted(map(luminance, drawing_kit.shade(part)))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_what_is_shown_has_the_picture_in_it() -> None:
    """The output offers the widget, the static drawing's very bytes, and words."""
    pytest.importorskip("anywidget")
    figure = drawing.ring_chunks(3)
    shown = play(figure)
    data, _ = shown._repr_mimebundle_()
    assert set(data) == {VIEW, "image/svg+xml", "text/plain"}
    assert data["image/svg+xml"] == figure.svg == shown.svg
    assert data["text/plain"] == figure.alt == repr(shown)
    shown.close()


def test_without_anywidget_there_is_the_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing fails where widgets are not installed: the figure comes back, and a line says why."""
    monkeypatch.setitem(sys.modules, "anywidget", None)
    player._player_class.cache_clear()
    figure = drawing.ring_chunks(3)
    assert play(figure) is figure
    assert "pip install anywidget" in capsys.readouterr().out


def test_what_cannot_be_played_is_refused() -> None:
    """A picture without times, and a length of time that is none, get an error that says so."""
    with pytest.raises(ValueError, match="Nothing happens in this picture, so it cannot be played: a bar"):
        play(Figure("<svg></svg>", "a bar"))
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="positive number of seconds"):
            play(drawing.ring_chunks(2), seconds)


@pytest.mark.parametrize("name", ["player.js", "player.css"])
def test_nothing_comes_from_elsewhere(name: str) -> None:
    """The player loads nothing, and sends nothing."""
    text = (FOLDER / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert (
        re.findall(r"https?:|//\w+\.|\bimport\b|fetch\(|XMLHttp|WebSocket|@import|eval\(|innerHTML|url\((?!#)", text)
        == []
    )


@pytest.mark.course
@pytest.mark.slow
def test_a_built_notebook_keeps_the_picture_alone(tmp_path: Path) -> None:
    """A notebook is built without the widget, which dies with its kernel: who opens it sees the picture."""
    pytest.importorskip("anywidget")
    source = (
        "from workbench.course import drawing\nfrom workbench.observe.player import play\nplay(drawing.ring_chunks(2))"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (cell,) = build.execute(notebook, tmp_path).cells
    (output,) = cell.outputs
    assert set(output.data) == {"image/svg+xml", "text/plain"}
    assert output.data["image/svg+xml"] == drawing.ring_chunks(2).svg
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
