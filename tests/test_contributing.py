"""What CONTRIBUTING.md, the issue forms and the CI workflow name is there."""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from project import PROJECT, ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
CLASSIFIERS = PROJECT["classifiers"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps() -> Iterator[dict[str, Any]]:
    """Every step of every job of the workflow."""
    for job in WORKFLOW["jobs"].values():
        yield from job["steps"]


def paths(text: str) -> set[str]:
    """What looks like a path of this repository: words with a slash, and names of files at its root.

    Of ``workbench/<name>/ops.py``, where the reader chooses the name, the part before it.
    """
    words = re.findall(r"[\w./<>*-]+", re.sub(r"\w+://\S+", "", text))
    named = {word.rstrip(".") for word in words if "/" in word or re.fullmatch(r"\w+\.(?:md|toml|yml|cff)", word)}
    return {
        name.partition("<")[0].partition("*")[0].rpartition("/")[0] if re.search("[<*]", name) else name
        for name in named
    }


def missing(text: str) -> set[str]:
    """Paths and make targets that a text names and that do not exist; ``.venv`` is there after the set-up."""
    gone = {name for name in paths(text) if not name.startswith(".venv/") and not (ROOT / name).exists()}
    return gone | {f"make {name}" for name in re.findall(r"\bmake ([a-z-]+)", text) if name not in TARGETS}


def test_what_contributing_names_exists() -> None:
    """Paths and make targets, within its code and commands."""
    code = re.findall(r"`[^`\n]+`", CONTRIBUTING) + re.findall(r"```\w*\n(.*?)```", CONTRIBUTING, re.DOTALL)
    assert len(paths("\n".join(code))) > 10
    assert missing("\n".join(code)) == set()


def test_the_minutes_of_a_target_are_the_same_everywhere() -> None:
    """README.md and CONTRIBUTING.md say what the Makefile says, for each target that they give minutes."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    minutes = dict(re.findall(r"^([a-z-]+):.*## .*about (\d+) minutes", makefile, re.MULTILINE))
    for text in (CONTRIBUTING, (ROOT / "README.md").read_text(encoding="utf-8")):
        named = re.findall(r"^\$ make ([a-z-]+) +#.*?(\S+) minutes", text, re.MULTILINE)
        assert named
        assert named == [(target, minutes.get(target)) for target, _ in named]


def test_a_run_writes_its_minutes(tmp_path: Path) -> None:
    """To all three files, if what they say is more than a quarter off."""
    program = runpy.run_path(str(ROOT / ".ci" / "minutes.py"))
    for name in program["FILES"]:
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    said = program["write"]("test", 60 * 9999, tmp_path)
    assert "9999 minutes" in said
    for name in program["FILES"]:
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "about 9999 minutes on two cores" in text
        assert text.count("9999") == 1
    assert program["write"]("test", 60 * 8000, tmp_path) == ""


def test_ci_runs_what_exists() -> None:
    """Each command of the workflow is a program of the runner, of this repository or of its environment."""
    commands = [step["run"] for step in steps() if "run" in step]
    assert ".ci/run" in commands
    assert missing("\n".join(commands)) == set()
    for name in re.findall(r"(?<!\S)\.ci/\w+", " ".join(commands)):
        assert os.access(ROOT / name, os.X_OK), name


def test_actions_are_pinned_by_their_commits() -> None:
    """A tag can be moved to other code, a commit cannot; the version stands beside it."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    used = re.findall(r"uses: (.*)", "\n".join(texts))
    assert len(used) > 10
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_ci_covers_the_oldest_and_the_newest_python() -> None:
    """Linux runs both ends of pyproject's classifiers; macOS, and all tests each night, the newest."""
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(CLASSIFIERS))
    assert WORKFLOW["jobs"]["linux"]["strategy"]["matrix"]["python"] == [pythons[0], pythons[-1]]
    for job in ("macos", "nightly"):
        (chosen,) = (step["with"]["python-version"] for step in WORKFLOW["jobs"][job]["steps"] if "with" in step)
        assert chosen == pythons[-1]
    assert {name: job["timeout-minutes"] for name, job in WORKFLOW["jobs"].items() if job["timeout-minutes"] > 90} == {
        "nightly": 240
    }
    assert WORKFLOW["permissions"] == {"contents": "read"}
