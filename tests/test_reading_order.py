"""The README's reading order is true: its files, their lines, and the sum that it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PART = README.partition("## Read it in an evening")[2].partition("\n## ")[0]
LISTED = {name: int(lines) for name, lines in re.findall(r"^\| \d+ \| `([^`]+)` \| (\d+) \|", PART, re.MULTILINE)}


@pytest.mark.parametrize("name", LISTED)
def test_a_file_is_about_as_long_as_it_says(name: str) -> None:
    """It is there, and within a tenth of the lines that a reader is told."""
    assert (ROOT / name).read_text(encoding="utf-8").count("\n") == pytest.approx(LISTED[name], rel=0.1, abs=5)


def test_the_whole_way_is_short() -> None:
    """Sixteen files at most; the text above the table says how many. All of the core is among them."""
    said = re.search(r"in (\d+) files and ([\d,]+) lines", PART)
    assert said is not None
    files, lines = int(said[1]), int(said[2].replace(",", ""))
    assert (files, lines) == (len(LISTED), sum(LISTED.values()))
    assert files <= 16
    core = {f"workbench/core/{path.name}" for path in (ROOT / "workbench" / "core").glob("[a-z]*.py")}
    assert core <= LISTED.keys()


@pytest.mark.parametrize("file", re.findall(r"\| `(workbench/[^`]+)` \| `WORKBENCH", PART))
def test_an_acceleration_is_where_it_says(file: str) -> None:
    """Its file is there."""
    assert (ROOT / file).is_file()


def test_the_settings_that_turn_accelerations_off_are_there() -> None:
    """Each is read by config."""
    from workbench.config import Settings

    names = re.findall(r"`WORKBENCH_([A-Z_]+)=", PART)
    assert len(names) >= 6
    assert all(hasattr(Settings(), name.lower()) for name in names)
