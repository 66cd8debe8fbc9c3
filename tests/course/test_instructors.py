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
