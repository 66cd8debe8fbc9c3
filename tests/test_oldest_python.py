"""The package keeps to the oldest Python of pyproject.toml, whichever Python the tests run on.

To its grammar, too, which ruff sees to by its target-version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from project import PROJECT, ROOT

OLDEST = PROJECT["requires-python"].removeprefix(">=")
NEWEST = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))[-1]


def complaints(python: str, path: Path, cache: Path) -> set[str]:
    """What mypy says about a file or folder on a version of Python, of the standard library alone."""
    options = ["--config-file", os.devnull, "--no-site-packages", "--cache-dir", str(cache), "--hide-error-context"]
    command = [sys.executable, "-m", "mypy", *options, "--python-version", python, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return set(re.findall(r"^.*: error: .*$", done.stdout, re.MULTILINE))


def newer_than_oldest(path: Path, cache: Path) -> set[str]:
    """What mypy misses on the oldest Python and finds on the newest: other complaints are for ``make check``."""
    return complaints(OLDEST, path, cache) - complaints(NEWEST, path, cache)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_newer_is_used_unguarded(tmp_path: Path) -> None:
    """No module or name of a newer standard library, unless ``sys.version_info`` or an extra dependency guards it."""
    pytest.importorskip("mypy")
    stand_ins = [Requirement(each).name for each in PROJECT["dependencies"] if "python_version <" in each]
    found = newer_than_oldest(ROOT / "workbench", tmp_path)
    assert {each for each in found if not any(f'module named "{name}"' in each for name in stand_ins)} == set()


def older() -> list[str]:
    """Those that are installed here, and start."""
    there = [shutil.which(f"python3.{minor}") for minor in (7, 8, 9)]
    there += map(str, Path.home().glob(".pyenv/versions/3.[789].*/bin/python"))
    return [each for each in there if each and subprocess.run([each, "-c", ""], capture_output=True).returncode == 0]


@pytest.mark.process
def test_an_older_python_is_told_which_one_is_needed() -> None:
    """In one sentence, whichever of them imports a clone."""
    found = older()
    for python in found:
        words = [python, "-B", "-c", "import workbench"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30)
        assert done.stderr.splitlines()[-1].startswith(f"ImportError: workbench needs Python {OLDEST} or newer; ")
    if not found:
        pytest.skip("no older Python is installed here")
