"""A process that is stopped is named, once, and so is that it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from workbench.cluster.stopped import StoppedEngines
from workbench.machine import why_stopped

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc")


def test_a_stopped_engine_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine 1 by its number, its process and the way to let it go on; engine 0 runs; engine 2 has ended."""
    monkeypatch.setattr("workbench.cluster.stopped._PATIENCE_S", 0.0)
    said: list[str] = []
    process = subprocess.Popen(["sleep", "1000"])
    try:
        watch = StoppedEngines(
            lambda each: [why_stopped(os.getpid()), why_stopped(process.pid), None][each], said.append
        )
        os.kill(process.pid, signal.SIGSTOP)
        while not said:
            watch.look({0: 1, 1: 1, 2: 1})
            time.sleep(0.01)
        watch.look({0: 1, 1: 1, 2: 1})
        (line,) = said
        assert line.startswith(f"engine 1 does not run: its process {process.pid} is stopped")
        assert f"kill -CONT {process.pid}" in line
        watch.look({0: 1, 1: 2, 2: 1})
        watch.look({0: 1, 1: 2, 2: 1})
        assert said == [line, line], "the next cell has an output of its own"
        os.kill(process.pid, signal.SIGCONT)
        while len(said) == 2:
            watch.look({0: 1, 1: 2, 2: 1})
            time.sleep(0.01)
        assert said[2:] == ["engine 1 goes on"]
    finally:
        process.kill()
        process.wait()


def test_a_stop_of_a_moment_is_not_worth_a_word() -> None:
    """A shell's or a debugger's."""
    said: list[str] = []
    process = subprocess.Popen(["sleep", "1000"])
    try:
        watch = StoppedEngines(lambda each: why_stopped(process.pid), said.append)
        os.kill(process.pid, signal.SIGSTOP)
        watch.look({0: 1})
        os.kill(process.pid, signal.SIGCONT)
        watch.look({0: 1})
        watch.look({})
        assert said == []
    finally:
        process.kill()
        process.wait()
