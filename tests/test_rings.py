"""The rings of tests: which tests ``make quick`` runs, and the table of what took how long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from durations import reasons

INNER = """
import os, subprocess, sys, threading
import pytest

def test_computes():
    assert 1 + 1 == 2

def test_starts_one():
    try:
        subprocess.run([sys.executable, "-c", "print('started')"])
    except Exception:
        assert False, "a test cannot catch it by mistake"

def test_forks():
    if not os.fork():
        os._exit(0)

@pytest.mark.parallel
def test_is_marked():
    raise AssertionError
"""
HELPERS = Path(__file__).parent / "helpers"


def test_the_first_ring_starts_no_process(tmp_path: Path) -> None:
    """A test that is marked is left out, one that starts a process is skipped, and the others are run."""
    (tmp_path / "test_inner.py").write_text(INNER)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = parallel: several processes\n")
    words = ["-m", "pytest", "-p", "rings", "-p", "no:cacheprovider", "--no-processes", "-rs", str(tmp_path)]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HELPERS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "1 passed, 2 skipped, 1 deselected" in done.stdout, done.stdout + done.stderr


def test_reasons_are_of_tests_that_there_are() -> None:
    """``file.py::test`` of ``tests/slow.toml`` is a test of exactly one file, and the reason is a sentence."""
    there = list(Path(__file__).parent.rglob("test_*.py"))
    for name, reason in reasons().items():
        path, _, test = name.partition("::")
        files = [each for each in there if each.name == path and f"def {test}(" in each.read_text(encoding="utf-8")]
        assert len(files) == 1, name
        assert len(reason.split()) >= 3, name


def test_deadlines_follow_the_machine(tmp_path: Path) -> None:
    """On a machine that is three times as slow each test has three times its own limit, or that of all."""
    (tmp_path / "test_inner.py").write_text(
        "import pytest\nlimit = lambda request: request.node.get_closest_marker('timeout').args[0]\n"
        "def test_all(request): assert limit(request) == 180\n"
        "@pytest.mark.timeout(10)\ndef test_own(request): assert limit(request) == 30\n"
    )
    (tmp_path / "conftest.py").write_text("import deadlines\ndeadlines.slowness = lambda: 3.0\n")
    words = ["-m", "pytest", "-p", "deadlines", "-p", "no:cacheprovider", "-n", "1", str(tmp_path)]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout"}
    done = subprocess.run([sys.executable, *words], cwd=HELPERS, env=env, text=True, capture_output=True)
    assert "2 passed" in done.stdout, done.stdout
