"""What instructors read is true: files that are linked exist, folders that are named exist, copies are equal."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml
from project import ROOT

from workbench.course.predictions.names import NAMES
from workbench.course.tasks import names

TEXTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"instructors/{name}.md" for name in ("guide", "plans", "ai-policy")),
]
TEXTS += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if path.name != "index.md")


def test_links_lead_somewhere() -> None:
    """Each link within the repository is to a file that is there, or to a heading of the same text."""
    for name in TEXTS:
        links_lead_somewhere(name)


def links_lead_somewhere(name: str) -> None:
    """Of one text."""
    text = (ROOT / name).read_text(encoding="utf-8")
    headings = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall("^#+ (.+)$", text, re.M)}
    for link, source in re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
        target = link or source
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


HEADS = {
    path.stem[:2]: re.sub(r"\s*\n# ?", " ", path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "lessons").glob("[0-9]*.py"))
}
LED = {number: int(re.findall(r"\*\*Led:\*\* (\d+) minutes", text)[0]) for number, text in HEADS.items()}
NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
NUMBERS |= {"twelve": 12, "fifteen": 15, "twenty": 20, "twenty-five": 25}


def test_a_lesson_s_led_minutes_are_its_cells() -> None:
    """What the head says is the sum of what the instructor's cells say, where there are any: 00 and 01 have none."""
    cells = {n: [*map(int, re.findall(r"\*\*Instructor\.\*\* Led: (\d+)", text))] for n, text in HEADS.items()}
    assert {n for n, minutes in cells.items() if not minutes} == {"00", "01"}
    assert {n: sum(minutes) for n, minutes in cells.items() if minutes} == {n: LED[n] for n in cells if cells[n]}
    assert [n for n, text in HEADS.items() if text.count("**Instructor.**") != len(cells[n])] == []


def test_a_deck_fits_into_the_led_minutes() -> None:
    """The first minutes that the notes of each slide name, and one for a slide without."""
    for path in (ROOT / "lessons" / "slides").glob("*.md"):
        notes = re.findall(r"^Notes:(.*?)(?:\n\n|\Z)", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        named = [re.search(rf"\b({'|'.join(NUMBERS)})\s+minutes?\b", each.lower()) for each in notes]
        needed = sum(NUMBERS[each[1]] if each else 1 for each in named)
        assert needed <= LED[path.stem[:2]], (path.name, needed)


def test_the_plans_say_the_led_minutes() -> None:
    """The day's rows begin where the one before ends, and name a lesson's led minutes; so do both other plans."""
    guide = (ROOT / "instructors" / "guide.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+):(\d\d) \| (?:(\d+) of (\d+) )?\|[^|]*\| (?:(\d\d) )?\|", guide, re.MULTILINE)
    starts = [60 * int(hour) + int(minute) for hour, minute, *_ in rows]
    assert (starts[0], starts[-1]) == (9 * 60, 17 * 60)
    for (*_, taken, led, lesson), begin, end in zip(rows, starts, starts[1:], strict=False):
        assert not lesson or int(taken) == end - begin <= int(led) == LED[lesson], lesson
    day = [each[4] for each in rows if each[4]]
    says = f"take {sum(LED[n] for n in day)} minutes, led in full; it has {sum(int(each[2] or 0) for each in rows)}"
    assert says in guide
    others = dict(re.findall(r"^\| (\d\d) [^|]+\| (\d+) \|", guide, re.MULTILINE))
    assert {n: int(led) for n, led in others.items()} == {n: LED[n] for n in LED if n not in day}
    plans = (ROOT / "instructors" / "plans.md").read_text(encoding="utf-8")
    for plan in plans.split("\n## "):
        if title := re.match(r"(?:Lesson (\d\d): .*|The practical session), (\d+) minutes led\n", plan):
            ends = re.findall(r"^\| \d+ – (\d+) \|", plan, re.MULTILINE)
            assert int(title[2]) == int(ends[-1]) == LED[title[1] or "22"], title[0]
    assert plans.count(" minutes led\n") == 4
