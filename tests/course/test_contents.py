"""The table of contents that the side bar in JupyterLab shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from workbench.course import contents
from workbench.course.build import ROOT
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


def counted(notebook: Path) -> float:
    """Minutes to read: text at 130 words a minute, code at 12 lines, output at 150 words."""
    words = lines = shown = 0
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            words += 0 if "workbench" in cell["metadata"] else len(re.findall(r"[\w’'-]+", text))
            continue
        hidden = cell["metadata"].get("jupyter", {}).get("source_hidden")
        lines += 0 if hidden else sum(bool(line.strip()) for line in text.splitlines())
        for output in cell["outputs"]:
            printed = output.get("text") or output.get("data", {}).get("text/plain") or ""
            shown += len(re.findall(r"[\w.]+", "".join(printed)))
    return words / 130 + lines / 12 + shown / 150


@pytest.mark.parametrize("lesson", sorted((ROOT / "lessons").glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_the_minutes_are_true(lesson: Path) -> None:
    """What a head says of reading is what reading takes; lesson 22 says how long its commands take, too."""
    said = int(re.findall(r"\*\*Takes\*\*\s(?:# )?(\d+)", lesson.read_text(encoding="utf-8"))[0])
    minutes = counted(ROOT / "notebooks" / f"{lesson.stem}.ipynb")
    assert minutes - 3 <= said <= minutes + (25 if lesson.stem.startswith("22") else 7)
