"""The reading order in the docs is true: its files, their lines, and what a step really runs."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from running import Runner

from workbench.config import Settings

ROOT = Path(__file__).parents[1]
PART = (ROOT / "docs" / "explanation" / "reading.md").read_text(encoding="utf-8")
ROWS = re.compile(r"^\| \d+ \| `([^`]+)` \| (\d+) \|", re.MULTILINE)
LISTED = {name: int(lines) for name, lines in ROWS.findall(PART)}
WALKS = [[name for name, _ in ROWS.findall(walk)] for walk in re.split(r"^Then ", PART, flags=re.MULTILINE)]
"""The idea, the core, the way of a gradient."""
FIGURES = [(int(functions), int(files)) for functions, files in re.findall(r"^\| .+ \| (\d+) \| (\d+) \|$", PART, re.M)]
FILES, FUNCTIONS = re.findall(r"± (\d+)", PART)  # what the text allows itself: files, and percent of the functions
OFF = dict.fromkeys(re.findall(r"`(WORKBENCH_[A-Z_]+)=0`", PART), "0")

Called = dict[str, list[str]]


@pytest.mark.parametrize("name", LISTED)
def test_a_file_is_about_as_long_as_it_says(name: str) -> None:
    """It is there, and within a tenth of the lines that a reader is told."""
    assert (ROOT / name).read_text(encoding="utf-8").count("\n") == pytest.approx(LISTED[name], rel=0.1, abs=5)


def test_the_whole_way_is_short() -> None:
    """The text above the tables says how many files there are, and seventeen are enough."""
    said = re.search(r"in (\d+) files and ([\d,]+) lines", PART)
    assert said is not None
    files, lines = int(said[1]), int(said[2].replace(",", ""))
    assert (files, lines) == (len(LISTED), sum(LISTED.values()))
    assert files <= 17


def test_the_order_is_the_idea_the_core_the_way() -> None:
    """nano.py first; then all of the core; then what is around it."""
    idea, core, way = WALKS
    assert idea == ["examples/nano.py"]
    assert {Path(name).parent for name in core} == {Path("workbench/core")}
    assert {f"workbench/core/{path.name}" for path in (ROOT / "workbench" / "core").glob("[a-z]*.py")} <= {*core, *way}


@cache
def called(folder: Path, off: bool) -> dict[str, Called]:
    """What two ranks run, told by Python's tracer: see ``way.py``."""
    way = str(ROOT / "tests" / "helpers" / "way.py")
    job = Runner(folder).mpiexec(2, way, "--json", deadline_s=100, **(OFF if off else {}))
    assert job.code == 0, job.report()
    found: dict[str, Called] = json.loads(job.out(0).splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what jobs write."""
    return tmp_path_factory.mktemp("way")


@pytest.mark.parallel
@pytest.mark.timeout(120)
def test_a_step_runs_what_is_to_be_read(folder: Path) -> None:
    """Every file of the second and third walk runs in the first step, those of the third in the order that is said."""
    _, core, way = WALKS
    first = list(called(folder, off=False)["first step"])
    assert {*core, *way} <= {*first}
    assert sorted(way, key=first.index) == way


@pytest.mark.parallel
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("row", "action", "off"),
    [
        pytest.param(0, "nano", False),
        pytest.param(1, "step", False),
        pytest.param(2, "step", True, marks=pytest.mark.thorough),
        pytest.param(3, "allreduce", False),
    ],
)
def test_as_much_runs_as_it_says(row: int, action: str, off: bool, folder: Path) -> None:
    """Functions and files of a step of two ranks, within what the text allows itself."""
    files = called(folder, off)[action]
    if action == "nano":  # a heartbeat of the workbench may fall into it
        files = {name: functions for name, functions in files.items() if name == WALKS[0][0]}
    functions, count = FIGURES[row]
    assert abs(len(files) - count) <= int(FILES), sorted(files)
    assert sum(map(len, files.values())) == pytest.approx(functions, rel=int(FUNCTIONS) / 100, abs=3)


@pytest.mark.parametrize("file", re.findall(r"\| `(workbench/[^`]+)` \| `WORKBENCH", PART))
def test_an_acceleration_is_where_it_says(file: str) -> None:
    """Its file is there."""
    assert (ROOT / file).is_file()


def test_the_settings_that_turn_accelerations_off_are_there() -> None:
    """Each is read by config."""
    names = re.findall(r"`WORKBENCH_([A-Z_]+)=", PART)
    assert len(names) >= 6
    assert all(hasattr(Settings(), name.lower()) for name in names)
