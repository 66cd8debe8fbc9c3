"""``.ci/system`` as root: what it does before it runs apt-get, with an apt-get that only writes down its calls."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "env", "timeout", "mktemp", "grep", "tail", "tr", "rm", "chmod")
# Also calls what packages' scripts call, with the PATH that it is told to give them.
APT = """\
echo "$*" >>{0}
for word; do
    case $word in DPkg::Path=*) (PATH=${{word#*=}} && invoke-rc.d no-such-service start && echo quiet >>{0}) ;; esac
done"""
Run = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def system(tmp_path: Path) -> Run:
    """Runs it, where no package is installed; gives what it said, and apt-get's calls."""
    calls, said = tmp_path / "calls", tmp_path / "said"
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "/no/such/tool")
    for name, text in (("id", "echo 0"), ("apt-get", APT.format(calls))):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    command = [str(ROOT / ".ci" / "system")]
    env = {"PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path)}

    def run(answer: str | None = None) -> tuple[str, list[str]]:
        for path in (calls, said):
            path.write_text("")
        if answer is None:
            done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            return done.stderr, calls.read_text().splitlines()
        ours, theirs = pty.openpty()
        os.write(ours, f"{answer}\n".encode())
        process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        text = b""
        try:
            while more := os.read(ours, 1000):
                text += more
        except OSError:  # the end, as Linux has it
            pass
        process.wait()
        os.close(ours)
        return text.decode(), calls.read_text().splitlines()

    return run


def test_without_a_terminal_it_says_what_it_installs(system: Run) -> None:
    """In CI nobody can answer: the packages are named, and installed."""
    said, calls = system()
    assert said.startswith("system: installing with apt-get, for all tests: chromium ")
    assert any("install" in call and "chromium" in call for call in calls)


def test_no_daemon_starts(system: Run) -> None:
    """The command by which packages' scripts start a daemon does nothing while they are installed."""
    _, calls = system()
    installed = [i for i, call in enumerate(calls) if "install" in call and "--no-download" in call]
    assert installed
    assert all(calls[i + 1] == "quiet" for i in installed)


@pytest.mark.parametrize(("answer", "goes_on"), [("y", True), ("n", False), ("", False)])
def test_with_a_terminal_it_asks_first(system: Run, answer: str, goes_on: bool) -> None:
    """Whoever types make setup-tests as root is asked, and nothing is touched without a yes."""
    said, calls = system(answer)
    assert "install with apt-get, for all tests: chromium" in said
    assert "[y/N]" in said
    assert bool(calls) is goes_on
    assert goes_on or "not installed" in said
