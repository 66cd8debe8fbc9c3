"""A running ``workbench run --min-np``, whose ranks a test kills."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

LAUNCHER = (sys.executable, "-m", "workbench.cli.main", "run")


class Job:
    """A running elastic job.

    Args:
        folder: its working directory; what it prints goes to ``out`` there.
        words: of ``workbench run``, with the command, whose second word is the script.
        script: the ranks' file.
        env: added to the environment.
        launcher: starts ``workbench run``.
    """

    def __init__(
        self,
        folder: Path,
        words: list[str],
        script: Path,
        env: Mapping[str, str] | None = None,
        launcher: Sequence[str] = LAUNCHER,
    ) -> None:
        self.script, self.out = script, folder / "out"
        null, both = subprocess.DEVNULL, {**os.environ, **(env or {})}
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [*launcher, *words], stdin=null, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=both
            )

    def text(self) -> str:
        """What came so far."""
        return self.out.read_text(errors="replace")

    def wait_for(self, pattern: str, limit_s: float = 60.0, times: int = 1, after: int = 0) -> re.Match[str]:
        """Until this was printed so many times since the first ``after`` characters; the last match."""
        until = time.monotonic() + limit_s
        while len(found := list(re.finditer(pattern, self.text()[after:]))) < times:
            assert time.monotonic() < until, self.text()
            assert self.process.poll() is None, self.text()
            time.sleep(0.01)
        return found[-1]

    def ranks(self) -> dict[int, int]:
        """By worker its process id."""
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if process.cmdline()[1:2] == [str(self.script)]:
                    found[int(process.environ()["WORKBENCH_WORKER"])] = process.pid
            except (psutil.Error, KeyError):
                continue
        assert found, self.text()
        return found

    def kill(self, worker: int) -> int:
        """SIGKILL; how much had been printed until then."""
        printed = len(self.text())
        os.kill(self.ranks()[worker], signal.SIGKILL)
        return printed

    def end(self, limit_s: float = 90.0) -> str:
        """Wait for the end of the job; what it printed."""
        self.code = self.process.wait(limit_s)
        return self.text()

    def close(self) -> None:
        """End it if it is still running."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


TRAIN_ON_HOSTS = """
import os, sys, time
import numpy as np
import workbench as hvd
from workbench import elastic
from workbench.job.objects import broadcast_object

print("ranks here:", os.environ["HOROVOD_LOCAL_SIZE"], flush=True)
hvd.init()
state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, sum=np.zeros(100_000))
over = sys.argv[1]

@elastic.run
def train(state):
    print(f"begins with {hvd.size()} at {state.step}", os.getpid(), flush=True)
    while not hvd.allreduce(np.array([float(os.path.exists(over))]), op=hvd.Max, name="over")[0]:
        state.sum = state.sum + hvd.allreduce(np.full(100_000, state.step, np.float64), name="mean")
        state.step += 1
        state.commit()
        time.sleep(0.01)

train(state)
assert (state.sum == sum(range(state.step))).all(), state.sum
print("done", flush=True)
"""


class HostsJob(Job):
    """A training on hosts that lasts until it is told to end.

    Args:
        folder: its working directory.
        words: of ``workbench run``, without the command.
        env, launcher: see :class:`Job`.
    """

    def __init__(self, folder: Path, words: Sequence[str], env: Mapping[str, str], launcher: Sequence[str]) -> None:
        script, self._over = folder / "train.py", folder / "over"
        script.write_text(TRAIN_ON_HOSTS)
        command = [*words, sys.executable, str(script), str(self._over)]
        super().__init__(folder, command, script, {**env, "TMPDIR": str(folder)}, launcher)

    def ends_well(self, workers: int) -> str:
        """Let it end, and wait for that; so many workers come to it."""
        self._over.touch()
        try:
            code = self.process.wait(90)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job hangs:\n{self.text()[-6000:]}")
        text = self.text()
        assert code == 0, text
        assert text.count("<stdout>:done") == workers, text
        return text
