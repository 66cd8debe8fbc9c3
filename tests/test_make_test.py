"""`.ci/test`, which `make test` calls: its exit status is what the tests and the checks have said."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
FAILS = "assert False"
FAILS_ONCE = "import pathlib; p = pathlib.Path('seen'); seen = p.exists(); p.touch(); assert seen"


def a_project(folder: Path, checks: str, tests: list[str]) -> Path:
    """A folder with our `.ci/test`, checks that end with `checks`, and one test for each of `tests`."""
    (folder / ".ci").mkdir()
    shutil.copy(HERE / ".ci" / "test", folder / ".ci" / "test")
    bin = folder / ".venv" / "bin"
    bin.mkdir(parents=True)
    programs = {folder / ".ci" / "check": checks, bin / "python": f'exec {sys.executable} "$@"'}
    for path, lines in programs.items():
        path.write_text(f"#!/usr/bin/env bash\n{lines}\n")
        path.chmod(0o755)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    thorough\n    engines\n")
    (folder / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--table')\n")
    (folder / "test_some.py").write_text("".join(f"def test_{n}():\n    {body}\n" for n, body in enumerate(tests)))
    return folder


@pytest.mark.parametrize(
    ("checks", "tests", "status", "says", "again"),
    [
        ("sleep 0.1; echo fine", ["pass"], 0, "1 passed", False),
        ("sleep 5; echo too long a line; exit 3", ["pass"], 1, "too long a line", False),
        ("echo fine", ["pass", FAILS], 1, "test_1", True),
        ("echo fine", ["pass", FAILS_ONCE], 0, "1 passed", True),
        ("echo fine", [FAILS_ONCE.replace("seen", f"seen{n}") for n in range(4)], 1, "4 failed", False),
    ],
    ids=["all is well", "a check fails", "a test fails", "a test is flaky", "four fail once"],
)
def test_its_status_is_what_tests_and_checks_say(
    tmp_path: Path, checks: str, tests: list[str], status: int, says: str, again: bool
) -> None:
    """Also where it has nothing left to end; up to three failed tests are run again, and named."""
    folder = a_project(tmp_path, checks, tests)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = ["bash", str(folder / ".ci" / "test")]
    done = subprocess.run(command, cwd=folder, env=outside, text=True, capture_output=True, timeout=100)
    assert (done.returncode, says in done.stdout) == (status, True), done.stdout + done.stderr
    assert ("FLAKY" in done.stdout) == again


def test_what_a_worker_leaves_is_done_by_the_others(tmp_path: Path) -> None:
    """A test that ends its worker is red, once; all others run, those of its file, too; then the run ends."""
    shutil.copy(HERE / "tests" / "helpers" / "scheduling.py", tmp_path)
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['scheduling']\n")
    for n in range(12):
        body = "import os; os._exit(1)" if n == 9 else "pass"
        (tmp_path / f"test_{n:02}.py").write_text(f"def test_a(): pass\ndef test_b(): {body}\ndef test_c(): pass\n")
    words = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    done = subprocess.run(words, cwd=tmp_path, text=True, capture_output=True, timeout=100)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 35 passed" in done.stdout
