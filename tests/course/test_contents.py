"""The table of contents that the side bar in JupyterLab shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from project import ROOT

from workbench.course import contents
from workbench.course.tasks import names

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_file_is_made_of_the_lessons() -> None:
    """Else: ``python -m workbench.course.build --kind exercises``."""
    assert contents.FILE.read_text(encoding="utf-8") == contents.as_text(contents.contents(ROOT / "lessons"))


def test_it_says_what_the_readme_says() -> None:
    """The same lessons with the same minutes in the same order, and the same two hours; each exercise once."""
    found = json.loads(contents.FILE.read_text(encoding="utf-8"))
    rows = re.findall(r"^\| \d\d \| \[(.+)\]\(notebooks/(.+)\.ipynb\) \| (\d+) \|$", README, re.MULTILINE)
    assert [(each["title"], each["stem"], str(each["minutes"])) for each in found["lessons"]] == rows
    assert [one["name"] for each in found["lessons"] for one in each["exercises"]] == list(names())
    first, *_, last, card = found["two_hours"]
    says = f"for the exercises of lessons {first} to {last} and four cards of {card};"
    assert f"A class has [two hours](instructors/guide.md#two-hours) {says}" in " ".join(README.split())


def test_a_lesson_must_say_how_long_it_takes(tmp_path: Path) -> None:
    """Its name is in the error."""
    (tmp_path / "00_new.py").write_text("# %% [markdown]\n# # New\n")
    with pytest.raises(ValueError, match=r"00_new\.py does not say"):
        contents.contents(tmp_path)
