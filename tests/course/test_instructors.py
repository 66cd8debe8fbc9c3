"""What instructors read is true: files that are linked exist, folders that are named exist, copies are equal."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from project import ROOT

from workbench.cli import main as cli
from workbench.course.exercise import catch_up
from workbench.course.predictions.names import NAMES
from workbench.course.tasks import names

TEXTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"instructors/{name}.md" for name in ("guide", "plans", "ai-policy")),
]
TEXTS += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if path.name != "index.md")
GUIDE = (ROOT / "instructors" / "guide.md").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    """Each link within the repository is to a file that is there, or to a heading of the same text."""
    for name in TEXTS:
        links_lead_somewhere(name)


def links_lead_somewhere(name: str) -> None:
    """Of one text."""
    text = (ROOT / name).read_text(encoding="utf-8")
    headings = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall("^#+ (.+)$", text, re.M)}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif "://" not in target and not target.startswith("../../actions/"):  # of the forge
            assert (ROOT / name).parent.joinpath(target.partition("#")[0]).exists(), target


def test_folders_of_the_docs_exist() -> None:
    """And each folder that is kept in the repository stands in the table."""
    table = (ROOT / "docs" / "about" / "folders.md").read_text(encoding="utf-8")
    rows = [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]
    named = {path for row in rows for path in row}
    for row in rows:
        base = Path(row[0]).parent if not row[0].endswith("/") else Path()
        for path in row:
            assert (ROOT / path).exists() or (ROOT / base / path).exists(), path
    kept = {f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert kept - named - {"workbench/", "build/", "dist/", "data/", "runs/"} == {
        name for name in kept if name.endswith(".egg-info/")
    }


def test_the_assistants_policy_is_beside_the_exercises() -> None:
    """A copy, made by `make lessons`."""
    policy = (ROOT / "instructors" / "ai-policy.md").read_text(encoding="utf-8")
    assert (ROOT / "exercises" / "AGENTS.md").read_text(encoding="utf-8") == policy


def rows(plan: str) -> list[list[str]]:
    """A plan's table, without its head."""
    table = GUIDE.partition(f"## {plan}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")][2:]


def test_the_plans_add_up() -> None:
    """Two hours are 120 minutes without a gap; the day's times follow from its minutes."""
    spans = [re.fullmatch(r"(\d+) – (\d+)", row[0]) for row in rows("Two hours")]
    edges = [(int(span[1]), int(span[2])) for span in spans if span]
    assert (edges[0][0], edges[-1][1]) == (0, 120)
    assert all(before[1] == after[0] for before, after in pairwise(edges))
    day = rows("One day")
    clock = [int(hour) * 60 + int(minute) for hour, minute in (row[0].split(":") for row in day)]
    assert len(day) > 10
    assert [end - begin for begin, end in pairwise(clock)] == [int(row[1]) for row in day[:-1]]


def test_the_guide_names_options_and_keys_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """The command's options, and a lesson to catch up with."""
    options = set(re.findall(r"(--(?:csv|junit|deadline|step))\b", GUIDE))
    with pytest.raises(SystemExit):
        cli.main(["grade", "--help"])
    told = capsys.readouterr().out
    assert options == {"--csv", "--junit", "--deadline", "--step"}
    assert all(option in told for option in options)
    assert "default: 300" in told
    assert "default: 30)" in told
    assert callable(catch_up)


def test_binder_installs_what_the_environment_says() -> None:
    """Each of its packages stands in environment.yml with the same range; what lessons import is among them."""
    small, large = (
        yaml.safe_load((ROOT / name).read_text())["dependencies"]
        for name in ("binder/environment.yml", "environment.yml")
    )
    assert set(small) <= {line for line in large if isinstance(line, str)}
    names = {re.split("[<>=]", line)[0] for line in small}
    assert {"mpich", "mpi4py", "ipyparallel", "pytorch", "jupyterlab", "matplotlib", "nbclient"} <= names
    assert os.access(ROOT / "binder" / "postBuild", os.X_OK)


def test_exercises_and_predictions_that_are_named_exist() -> None:
    """By their names, such as `03.ring_allreduce`."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "instructors").glob("*.md")]
    assert set(re.findall(r"`(\d\d\.[a-z]\w*)`", "\n".join(texts))) <= {*names(), *NAMES}


def test_minutes_for_a_class_hold_those_of_the_head() -> None:
    """Instructor cells name the minutes in class, and those for the exercises, which add up to the lesson's head."""
    for lesson in (ROOT / "lessons").glob("[0-9]*.py"):
        text = re.sub(r"\n# ?", " ", lesson.read_text(encoding="utf-8"))
        to_do = re.search(r"\*\*Takes\*\* [^.]*?(\d+) to do", text)
        cells = re.findall(r"\*\*Instructor\.\*\* In class (\d+) minutes, (\d+) of them for the exercises\.", text)
        if "**Instructor.** The plan of the slides" in text or to_do is None:
            assert not cells, lesson.stem
            continue
        assert text.count("**Instructor.**") == len(cells), lesson.stem
        assert sum(int(exercises) for _, exercises in cells) == int(to_do[1]), lesson.stem
        assert all(int(exercises) < int(minutes) for minutes, exercises in cells), lesson.stem
