"""The reading order in the docs names files and settings that there are."""

from __future__ import annotations

import re
from pathlib import Path

from workbench.config import Settings

ROOT = Path(__file__).parents[1]
PART = (ROOT / "docs" / "explanation" / "reading.md").read_text(encoding="utf-8")


def test_files_are_where_it_says() -> None:
    """Each file that it names, of the package or an example, is there."""
    named = set(re.findall(r"`((?:workbench|examples)/[\w/.]+\.py)`", PART))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_settings_that_turn_accelerations_off_are_there() -> None:
    """Each is read by config."""
    names = re.findall(r"`WORKBENCH_([A-Z_]+)=", PART)
    assert len(names) >= 6
    assert all(hasattr(Settings(), name.lower()) for name in names)
