"""The timeline's picture: true to what was recorded, the same bytes every time, and open to other tools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import workbench as wb
from workbench.errors import NotInitializedError
from workbench.observe.drawing import COLOURS, svg
from workbench.observe.timeline_picture import Picture
from workbench.observe.tracks import PHASES, Track, clock_shifts, length, tracks, waited_s
from workbench.runtime.trace.recorder import Answer, Collective, Snapshot

SVG = "{http://www.w3.org/2000/svg}"
MS = 1_000_000


def collective(index: int, submitted: int, announced: int, arrived: int, **fields: Any) -> Collective:
    """An allreduce of 4 kB, times in ms: 1 ms in the queue, packed in 1, reduced in 2, unpacked in 1."""
    begun = arrived + 1
    phases = [("MEMCPY_IN_FUSION_BUFFER", begun, begun + 1), ("MPI_ALLREDUCE", begun + 1, begun + 3)]
    phases.append(("MEMCPY_OUT_FUSION_BUFFER", begun + 3, begun + 4))
    one: dict[str, Any] = {
        "index": index,
        "process_set": 0,
        "kind": "allreduce",
        "names": [f"x{index}", f"y{index}"],
        "bytes": 4096,
        "submitted": (submitted * MS, announced * MS),
        "announced": announced * MS,
        "arrived": arrived * MS,
        "begun": begun * MS,
        "phases": [(what, begin * MS, end * MS) for what, begin, end in phases],
        "done": (begun + 4) * MS,
        "error": "",
    }
    return one | fields  # type: ignore[return-value]


def at_other_times(one: Collective, later: int = 0, factor: float = 1.0) -> Collective:
    """Each of its times is another one."""

    def change(time: int) -> int:
        return round(time * factor) + later

    times = {name: change(one[name]) for name in ("announced", "arrived", "begun", "done")}  # type: ignore[literal-required]
    phases = [(what, change(begin), change(end)) for what, begin, end in one["phases"]]
    return one | times | {"submitted": tuple(map(change, one["submitted"])), "phases": phases}  # type: ignore[return-value]


def snapshot(*collectives: Collective, answers: tuple[Answer, ...] = (), host: str = "a", wall_ns: int = 0) -> Snapshot:
    """One rank's."""
    return {"host": host, "wall_ns": wall_ns, "collectives": list(collectives), "answers": list(answers)}


def answer(index: int, rank: int, heard: int) -> Answer:
    """``rank`` was the last to announce a batch's second tensor; the other rank the last for the first."""
    return f"y{index}", rank, heard * MS


def late() -> list[Snapshot]:
    """Rank 1 comes 90 ms late to the first batch; rank 0 comes 5 ms late to the second."""
    answers = (("x0", 0, 11 * MS), answer(0, 1, 102), answer(1, 0, 125))
    first = snapshot(collective(0, 9, 10, 103), collective(1, 120, 124, 126), answers=answers)
    return [first, snapshot(collective(0, 99, 101, 104), collective(1, 118, 119, 126))]


def spans(track: Track, bar: int) -> list[tuple[str, float, float]]:
    """A bar's phases, in ms."""
    return [(span.phase, span.begin / 1000, span.end / 1000) for span in track.bars[bar].spans]


def phase_times(bar_of: Track, bar: int) -> dict[str, float]:
    """How long each phase took, in ms."""
    return {phase: end - begin for phase, begin, end in spans(bar_of, bar)}


# --- tracks --------------------------------------------------------------------------------------------


def test_phases_follow_each_other_without_a_gap() -> None:
    """From the first submission to the end, each phase begins where the one before it ends."""
    first, second = tracks(late(), 20)
    assert spans(first, 0) == [
        ("submit", 0, 1), ("wait", 1, 93), ("negotiate", 93, 94), ("queue", 94, 95),
        ("pack", 95, 96), ("reduce", 96, 98), ("unpack", 98, 99),
    ]  # fmt: skip
    assert spans(second, 0)[:2] == [("submit", 90, 92), ("negotiate", 92, 95)]


def test_the_last_rank_is_the_one_that_others_wait_for() -> None:
    """Of a batch's tensors the last announcement counts; the wait is that of the others, added up batch by batch."""
    first, second = shown = tracks(late(), 20)
    assert [bar.last for bar in first.bars] == [1, 0]
    assert [bar.last for bar in second.bars] == [1, 0]
    assert "wait" not in phase_times(second, 0)
    assert phase_times(second, 1)["wait"] == 6
    assert waited_s(shown) == {0: pytest.approx(0.006), 1: pytest.approx(0.092)}


def test_a_name_that_comes_again_has_its_own_last_rank() -> None:
    """Steps use the same names: what rank 0 heard after a response arrived belongs to a later step."""
    same = [collective(i, 100 * i + 1, 100 * i + 2, 100 * i + 50, names=["g"]) for i in range(4)]
    answers = tuple(("g", i % 2, (100 * i + 40) * MS) for i in range(4))
    shown = tracks([snapshot(*same, answers=answers), snapshot(*same)], 3)
    assert [bar.last for bar in shown[1].bars] == [1, 0, 1]


def test_compute_is_what_is_left() -> None:
    """A rank computes while nothing of it is in flight: before it came, and between batches; overlaps count once."""
    first, second = tracks(late(), 20)
    assert [(span.begin / 1000, span.end / 1000) for span in first.compute] == [(99, 111)]
    assert [(span.begin / 1000, span.end / 1000) for span in second.compute] == [(0, 90), (100, 109)]
    overlapping = snapshot(collective(0, 1, 2, 10), collective(1, 5, 6, 30), collective(2, 51, 52, 53))
    (track,) = tracks([overlapping], 20)
    assert [(span.begin / 1000, span.end / 1000) for span in track.compute] == [(34, 50)]


def test_bars_that_overlap_have_rows_of_their_own() -> None:
    """No two bars of one row overlap in time, and rows are used again."""
    times = [(1, 20), (2, 40), (5, 25), (27, 33), (60, 70)]
    (track,) = tracks([snapshot(*(collective(i, begin, begin, end) for i, (begin, end) in enumerate(times)))], 20)
    assert [bar.row for bar in track.bars] == [0, 1, 2, 0, 0]


def test_only_the_last_batches_are_shown() -> None:
    """``last`` counts batches of all ranks, a batch once; time begins with the first that is shown."""
    shown = tracks(late(), 1)
    assert [[bar.batch for bar in track.bars] for track in shown] == [[(0, 1)], [(0, 1)]]
    assert shown[1].bars[0].spans[0].begin == 0.0
    assert tracks(late(), 0) == [Track(0, (), ()), Track(1, (), ())]


def test_a_rank_that_never_came_is_the_one_waited_for() -> None:
    """A collective that failed for want of a rank shows who that was; its own track has but the response."""
    failed = {"error": "RankFailedError", "phases": [], "names": ["z"]}
    waits = collective(0, 1, 2, 500, **failed) | {"begun": 500 * MS, "done": 500 * MS}
    absent = waits | {"submitted": (0, 0), "announced": 0}
    shown = tracks([snapshot(waits, answers=(("z", 0, 3 * MS),)), snapshot(absent)], 20)  # type: ignore[arg-type]
    assert spans(shown[0], 0) == [("submit", 0, 1), ("wait", 1, 499)]
    assert (shown[0].bars[0].last, shown[1].bars[0].spans) == (1, ())
    assert "✕ RankFailedError" in svg(shown)


def test_one_rank_waits_for_nobody() -> None:
    """Alone there is no last rank."""
    (track,) = tracks([snapshot(collective(0, 0, 1, 2), answers=(answer(0, 0, 1),))], 20)
    assert track.bars[0].last is None


@pytest.mark.parametrize("apart", [0, 10**15, -(10**12)])
def test_other_machines_clocks_are_aligned_on_the_responses(apart: int) -> None:
    """Wherever another host's clock stands, what arrived at one moment is drawn at one moment."""
    here = [collective(i, 10 * i, 10 * i, 10 * i + 5) for i in range(1, 6)]
    jitter = [0, 1, 0, 0, -1]
    there = [collective(i, 10 * i + 1, 10 * i + 1, 10 * i + 5 + jitter[i - 1]) for i in range(1, 6)]
    for one in there:
        one.update(json.loads(json.dumps(at_other_times(one, later=apart))))
    both = [snapshot(*here), snapshot(*there, host="b")]
    assert clock_shifts(both) == [0, apart]
    first, second = tracks(both, 20)
    assert second.bars[0].spans[0].begin - first.bars[0].spans[0].begin == 1000.0  # µs


def test_machines_without_a_response_in_common() -> None:
    """Then their wall clocks decide."""
    here, there = collective(0, 1, 2, 3), collective(0, 1, 2, 3, process_set=4)
    both = [snapshot(here, wall_ns=50), snapshot(there, host="b", wall_ns=20)]
    assert clock_shifts(both) == [0, 30]


# --- SVG ----------------------------------------------------------------------------------------------


def test_the_same_data_give_the_same_bytes(tmp_path: Path) -> None:
    """Also after the data have travelled as JSON, in another process, with other hashes."""
    expected = svg(tracks(late(), 20))
    assert svg(tracks(json.loads(json.dumps(late())), 20)) == expected
    (tmp_path / "data.json").write_text(json.dumps(late()))
    code = (
        "import json, sys; from workbench.observe.tracks import tracks; from workbench.observe.drawing import svg\n"
        "sys.stdout.buffer.write(svg(tracks(json.load(open(sys.argv[1])), 20)).encode())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data.json")]
    root = str(Path(wb.__file__).parent.parent)
    for seed in ("1", "2"):
        child = subprocess.run(
            command, env={"PYTHONHASHSEED": seed, "PYTHONPATH": root}, capture_output=True, timeout=50
        )
        assert child.stdout == expected.encode(), child.stderr


def test_the_picture_is_xml_with_all_phases_and_marks() -> None:
    """It is well-formed, has a track per rank, every phase in its colour, the last rank's mark, names and bytes."""
    root = ElementTree.fromstring(svg(tracks(late(), 20)))
    words = [each.text or "" for each in root.iter(f"{SVG}text")]
    assert {"rank 0", "rank 1", "last in 1 of 2", "wait for rank 1", *PHASES} <= set(words)
    fills = [each.get("fill") for each in root.iter(f"{SVG}rect")]
    for phase in PHASES:
        assert fills.count(COLOURS[phase][0]) > 1, f"{phase}: in the legend, and drawn"
    titles = [each.text or "" for each in root.iter(f"{SVG}title")]
    assert "reduce (MPI_ALLREDUCE): 2 ms\nallreduce of x0, y0\n4.1 kB" in titles
    assert "rank 1 came last\nrank 0 waited 92 ms" in titles
    assert len(list(root.iter(f"{SVG}path"))) == 1 + 2  # the legend's mark, and one for each batch


@pytest.mark.parametrize("name", ['a<b>&"c"', "]]>", "\x00\x1b\ud800￿", "Größe 梯度", ""])
def test_any_name_makes_good_xml(name: str) -> None:
    """Names are the user's, and stand in the picture as they are, as far as XML has their characters."""
    names = [name] * 9
    root = ElementTree.fromstring(svg(tracks([snapshot(collective(0, 0, 1, 2, names=names))], 20)).encode())
    titles = "".join(each.text or "" for each in root.iter(f"{SVG}title"))
    assert "and 3 more" in titles
    if name.isprintable():
        assert name in titles


def test_nothing_leaves_the_picture() -> None:
    """Every box lies within the frame, from nanoseconds to minutes."""
    for scale in (1e-6, 1.0, 1e5):
        data = [
            snap | {"collectives": [at_other_times(one, factor=scale) for one in snap["collectives"]]}
            for snap in late()
        ]
        root = ElementTree.fromstring(svg(tracks(data, 20)))
        width, height = float(root.get("width", 0)), float(root.get("height", 0))
        for box in root.iter(f"{SVG}rect"):
            x, y = float(box.get("x", 0)), float(box.get("y", 0))
            assert 0 <= x <= x + float(box.get("width", 0)) <= width
            assert 0 <= y <= y + float(box.get("height", 0)) <= height


def test_readable_on_light_and_dark() -> None:
    """Letters and their ground, in both schemes and on every colour, differ by a contrast of 4.5 (WCAG AA)."""
    pairs = [("#ffffff", "#24292f"), ("#16191d", "#e6edf3"), *(COLOURS[phase] for phase in PHASES)]
    for ground, ink in pairs:
        assert contrast(ground, ink) >= 4.5, (ground, ink)


def contrast(one: str, other: str) -> float:
    """WCAG's ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


# --- the object ---------------------------------------------------------------------------------------


def test_chrome_trace(tmp_path: Path) -> None:
    """Valid JSON: a process per rank, every phase as a category, and events of a thread that lie within each other."""
    picture = Picture(late(), 20)
    picture.chrome_trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1"}
    complete = [e for e in events if e["ph"] == "X"]
    assert set(PHASES) | {"allreduce"} == {e["cat"] for e in complete}
    assert "wait for rank 1" in {e["name"] for e in complete}
    batch = next(e for e in complete if e["cat"] == "allreduce")
    assert batch["args"] == {"tensors": ["x0", "y0"], "bytes": 4096, "last": 1, "error": ""}
    for pid, tid in {(e["pid"], e["tid"]) for e in complete}:
        ends: list[float] = []
        for e in sorted(
            (e for e in complete if (e["pid"], e["tid"]) == (pid, tid)), key=lambda e: (e["ts"], -e["dur"])
        ):
            while ends and ends[-1] <= e["ts"] + 1e-3:
                ends.pop()
            assert not ends or e["ts"] + e["dur"] <= ends[-1] + 1e-3
            ends.append(e["ts"] + e["dur"])
    assert max(e["ts"] + e["dur"] for e in complete) == pytest.approx(length(picture.tracks))


def test_what_a_notebook_sees(tmp_path: Path) -> None:
    """The object shows itself, says itself in words, and saves what it shows."""
    picture = Picture(late(), 20)
    picture.save(str(tmp_path / "t.svg"))
    assert (tmp_path / "t.svg").read_text(encoding="utf-8") == picture._repr_svg_() == picture._repr_html_()
    waits = "the longest waits were for rank 1: 92 ms in all"
    assert repr(picture) == f"Timeline: 2 collectives of 2 ranks, 122 ms; {waits}"


def test_before_init_it_says_so() -> None:
    """Without a job and without a cluster there is nothing to draw."""
    with pytest.raises(NotInitializedError, match="init"):
        wb.timeline()
