"""Building a lesson twice changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from workbench.course import build
from workbench.course.outputs import Bound, bounds, joined, keep_equal, outside, patterns

LESSON = """# %% [markdown]
# # Lesson 99

# %%
import sys, time
for i in range(4):
    print("a line,", i, flush=True)
    time.sleep(0.05)
    print("a complaint,", i, file=sys.stderr, flush=True)

# %%
for i in range(4):
    print(i, flush=True)
    time.sleep(0.05)
print(f"{time.perf_counter_ns() % 7} threads each")
"""


@pytest.mark.course
@pytest.mark.timeout(120)
def test_building_a_lesson_twice_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte by byte, though the cells print piece by piece, and one prints what differs from run to run."""
    (tmp_path / "lessons" / "steps").mkdir(parents=True)
    (tmp_path / "lessons" / "99_test.py").write_text(LESSON)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    target = tmp_path / "notebooks" / "99_test.ipynb"
    builds = []
    for _ in range(2):
        build.main(["99", "--kind", "notebooks"])
        builds.append(target.read_bytes())
    assert builds[0] == builds[1]
    first, second = (cell for cell in nbformat.read(target, as_version=4).cells if cell.cell_type == "code")
    assert [output.name for output in first.outputs] == ["stdout", "stderr"] * 4
    assert len(second.outputs) == 1
    assert second.outputs[0].text.startswith("0\n1\n2\n3\n")


def stream(text: str, name: str = "stdout") -> Any:
    """An output."""
    return new_output("stream", name=name, text=text)


def test_only_neighbours_of_one_stream_are_joined() -> None:
    """What stands between two pieces, or another stream, stays where it is."""
    shown = new_output("display_data", data={"text/plain": "x"})
    found = joined([stream("a"), stream("b"), stream("c", "stderr"), stream("d"), shown, stream("e"), stream("f")])
    assert [output.get("text") for output in found] == ["ab", "c", "d", None, "ef"]
    assert joined([]) == []


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("4 ranks, 1 thread each", "4 ranks, 2 threads each", True),
        ("4 ranks, 1 thread each", "3 ranks, 1 thread each", False),
        ("      2      1,000     1.50×        75%", "      2      9,999     1.75×        88%", True),
    ],
)
def test_only_what_differs_from_run_to_run_is_kept(old: str, new: str, kept: bool) -> None:
    """The old text stays where the file says that it may differ; any other change is written."""
    before, now = (new_notebook(cells=[new_code_cell("x", id="a", outputs=[stream(text)])]) for text in (old, new))
    keep_equal(now, before, patterns(build.DIFFERS))
    assert now.cells[0].outputs[0].text == (old if kept else new)


def test_one_changed_cell_brings_all_new_outputs() -> None:
    """Whatever its figures are: those of two runs may contradict each other."""
    before, now = (
        new_notebook(
            cells=[
                new_code_cell(source, id="a", outputs=[stream(f"{n} threads each")]),
                new_code_cell("z", id="b", outputs=[stream(f"{n} threads each")]),
            ]
        )
        for n, source in ((3, "x"), (2, "y"))
    )
    keep_equal(now, before, patterns(build.DIFFERS))
    assert [cell.outputs[0].text for cell in now.cells] == ["2 threads each"] * 2


@pytest.mark.course
@pytest.mark.parametrize("kind", build.KINDS)
def test_committed_outputs_are_joined(kind: str) -> None:
    """So that the next build of any lesson shows no change of this sort."""
    for path in sorted((build.ROOT / kind).glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            outputs = cell.get("outputs", [])
            assert len(joined(outputs)) == len(outputs), f"{path.name}, {cell.id}"


MEASURES = """# %% [markdown]
# # Lesson 08

# %%
print("convolutional  alone 37.92 ms per step,  2 ranks: speed-up {}, efficiency 49%")
"""
AT_LEAST = "[08: two ranks]\nfigure: speed-up ([\\d.]+)\nleast: 1.4\n"


@pytest.mark.course
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("speedup", "taken", "refused"),
    [("0.99", 0.0, "two ranks: 0.99, in “speed-up 0.99”"), ("1.5", 45.0, "take 45 %"), ("1.5", 5.0, "")],
)
def test_a_busy_machine_measures_nothing(
    speedup: str, taken: float, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lesson with bounds is not written if others take the cores, or if a figure is outside; else it is."""
    (tmp_path / "lessons" / "steps").mkdir(parents=True)
    (tmp_path / "lessons" / "08_test.py").write_text(MEASURES.format(speedup))
    (tmp_path / "lessons" / "bounds.cfg").write_text(AT_LEAST)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "BOUNDS", tmp_path / "lessons" / "bounds.cfg")
    said = ""
    try:
        build.main(["08", "--kind", "notebooks"], taken_percent=lambda: taken)
    except SystemExit as error:
        said = str(error)
    assert refused in said
    assert bool(said) == bool(refused)
    assert (tmp_path / "notebooks" / "08_test.ipynb").exists() == (not refused)


def test_an_old_figure_outside_its_bounds_does_not_stay(tmp_path: Path) -> None:
    """Though the figure is one that differs from run to run: what stays is a figure within the bounds."""
    target, line = (
        tmp_path / "00_test.ipynb",
        "engines    images/s  speed-up  efficiency\n      2      1,000     {}×        75%",
    )
    expected = [Bound("two engines", r"([\d.]+)×", 1.4, 2.5)]
    for speedup, kept in (("0.99", "0.99"), ("1.60", "1.60"), ("1.70", "1.60")):
        cell = new_code_cell("table", id="a", outputs=[stream(line.format(speedup))])
        build.write(new_notebook(cells=[cell]), target, expected if speedup != "0.99" else ())
        assert nbformat.read(target, as_version=4).cells[0].outputs[0].text == line.format(kept)


@pytest.mark.course
def test_measured_figures_are_within_their_bounds() -> None:
    """What a reader sees was measured on a quiet machine: N ranks are faster, predictions are near."""
    for lesson in build.lessons([]):
        notebook = nbformat.read(build.ROOT / "notebooks" / f"{lesson.stem}.ipynb", as_version=4)
        found = outside(notebook, bounds(build.BOUNDS, lesson.stem))
        assert not found, lesson.stem
