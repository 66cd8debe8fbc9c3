"""`.ci/test`, which `make test` calls: its exit status is what the tests and the checks have said."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
# Stands for the environment's Python: the first run of tests ends with the first status, and names those that failed,
# the second with the second. What else `.ci/test` asks Python is answered by the real one.
PYTHON = """
if [ "$1" = -c ]; then exec {python} "$@"; fi
if [ "$1" = .ci/minutes.py ]; then exit 0; fi
case " $* " in *" -n 0 "*) echo again; exit {second};; esac
mkdir -p .pytest_cache/v/cache
printf '{{%s}}' '{failed}' >.pytest_cache/v/cache/lastfailed
exit {first}
"""


def ended(folder: Path, checks: str, first: int, second: int = 9, failed: int = 0) -> tuple[int, str]:
    """What `.ci/test` ends with, and says, where checks and runs of tests end so."""
    bin = folder / ".venv" / "bin"
    bin.mkdir(parents=True)
    (folder / ".ci").mkdir()
    shutil.copy(HERE / ".ci" / "test", folder / ".ci" / "test")
    names = ", ".join(f'"test_some.py::test_{n}": true' for n in range(failed))
    python = PYTHON.format(python=sys.executable, first=first, second=second, failed=names)
    for path, lines in {folder / ".ci" / "check": checks, bin / "python": python}.items():
        path.write_text(f"#!/usr/bin/env bash\n{lines}\n")
        path.chmod(0o755)
    words = ["bash", str(folder / ".ci" / "test")]
    done = subprocess.run(words, cwd=folder, text=True, capture_output=True, timeout=100)
    return done.returncode, done.stdout + done.stderr


def test_its_status_is_what_tests_and_checks_say(tmp_path: Path) -> None:
    """Also where it has nothing left to end; up to three failed tests are run again, and named."""
    cases = {
        "all is well": ({"checks": "echo fine", "first": 0}, 0, ""),
        "a check fails": ({"checks": "sleep 1; echo too long a line; exit 3", "first": 0}, 1, "too long a line"),
        "a test fails": (
            {"checks": "echo fine", "first": 1, "second": 1, "failed": 1},
            1,
            "FLAKY:\ntest_some.py::test_0",
        ),
        "a test is flaky": ({"checks": "echo fine", "first": 1, "second": 0, "failed": 3}, 0, "test_some.py::test_2"),
        "four fail once": ({"checks": "echo fine", "first": 1, "second": 0, "failed": 4}, 1, ""),
        "no test was found": ({"checks": "echo fine", "first": 5}, 5, ""),
    }
    for case, (told, status, says) in cases.items():
        (tmp_path / case).mkdir()
        code, said = ended(tmp_path / case, **told)
        assert (code, says in said, "again" in said) == (status, True, told.get("failed", 4) < 4), (case, said)


def test_what_a_worker_leaves_is_done_by_the_others(tmp_path: Path) -> None:
    """A test that ends its worker is red, once; all others run, those of its file, too; then the run ends."""
    shutil.copy(HERE / "tests" / "helpers" / "scheduling.py", tmp_path)
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['scheduling']\n")
    for n in range(12):
        body = "import os; os._exit(1)" if n == 9 else "pass"
        (tmp_path / f"test_{n:02}.py").write_text(f"def test_a(): pass\ndef test_b(): {body}\ndef test_c(): pass\n")
    words = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=100)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 35 passed" in done.stdout
