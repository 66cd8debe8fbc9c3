"""``.ci/lab``, with a Jupyter that only waits: what its short name in /tmp lives through."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
JUPYTER = """#!/usr/bin/env bash
case "$1" in
--runtime-dir) echo "$PWD/runtime" ;;
lab)
    ended() { [ ! -d "$JUPYTER_RUNTIME_DIR/." ] || echo "$1" >ended; exit 0; }
    trap 'sleep 1; ended TERM' TERM
    trap 'sleep 1; ended INT' INT
    readlink "$JUPYTER_RUNTIME_DIR" >/dev/null && echo "$JUPYTER_RUNTIME_DIR" >up
    while :; do sleep 0.1; done ;;
esac
"""


def wait(until: Callable[[], object]) -> None:
    """Until it is true, for 20 s."""
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``make lab``, in its own process group, when JupyterLab is up."""
    for folder in (".ci", ".venv/bin", "notebooks", "workbench/cli"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / ".ci" / "lab", tmp_path / ".ci")
    shutil.copy(ROOT / "workbench" / "cli" / "lab.sh", tmp_path / "workbench" / "cli")
    (tmp_path / "workbench" / "labextensions").symlink_to(ROOT / "workbench" / "labextensions")
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    for path, text in ((".ci/setup", "#!/bin/sh\n"), (".venv/bin/jupyter", JUPYTER), (".venv/bin/python", python)):
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    process = subprocess.Popen(["make", "lab"], cwd=tmp_path, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        wait((tmp_path / "up").exists)
        wait((tmp_path / "up").read_text)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(("how", "whom"), [("TERM", "make"), ("INT", "all")])
def test_the_short_name_lives_as_long_as_jupyterlab(
    tmp_path: Path, lab: subprocess.Popen[bytes], how: str, whom: str
) -> None:
    """JupyterLab gets the signal, ends with its folder still there, and nothing of it stays in /tmp."""
    short = Path((tmp_path / "up").read_text().strip())
    assert short.is_symlink()
    (os.kill if whom == "make" else os.killpg)(lab.pid, getattr(signal, f"SIG{how}"))
    wait(lambda: not short.parent.exists())
    assert (tmp_path / "ended").read_text().strip() == how


def test_the_short_name_goes_when_jupyterlab_is_killed(tmp_path: Path, lab: subprocess.Popen[bytes]) -> None:
    """Nothing of it stays in /tmp."""
    short = Path((tmp_path / "up").read_text().strip())
    found = subprocess.run(["pgrep", "-P", str(lab.pid)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(found[0]), signal.SIGKILL)
    wait(lambda: not short.parent.exists())


HOMELESS = """#!/usr/bin/env bash
case "$1" in
--runtime-dir) echo "$HOME/runtime" ;;
lab) echo "$HOME $JUPYTER_RUNTIME_DIR"; mkdir "$JUPYTER_RUNTIME_DIR/kernel" ;;
esac
"""


@pytest.mark.process
def test_a_home_that_cannot_be_written_is_replaced(tmp_path: Path) -> None:
    """JupyterLab starts with a home of its own, is told why, and leaves nothing in /tmp."""
    (tmp_path / "notebooks").mkdir()
    jupyter = tmp_path / "jupyter"
    jupyter.write_text(HOMELESS)
    jupyter.chmod(0o755)
    words = ["bash", str(ROOT / "workbench" / "cli" / "lab.sh"), str(tmp_path), str(jupyter)]
    done = subprocess.run(words, env={**os.environ, "HOME": "/dev/null"}, capture_output=True, text=True, timeout=30)
    assert (done.returncode, "/dev/null/runtime cannot be written" in done.stderr) == (0, True), done.stderr
    home, runtime = done.stdout.split()
    assert runtime == f"{home}/r"
    wait(lambda: not Path(home).exists())
