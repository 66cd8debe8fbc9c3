"""Who of the ranks' processes has ended, and who is only late?"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from running import eventually

from workbench.config import Launch
from workbench.launch.ranks import supervisor
from workbench.launch.ranks.events import RankPipes
from workbench.transport.bootstrap.peers import Siblings, children

# Starts two supervisors, as mpiexec does, and lives until it is told to end.
LAUNCHER = f"""
import os, subprocess, sys
for rank in range(2):
    command = [sys.executable, "-I", "-S", {supervisor.__file__!r}, sys.argv[1], *sys.argv[2:]]
    subprocess.Popen(command, env=os.environ | {{"PMI_RANK": str(rank)}})
sys.stdin.read()
"""
MINE = Launch("mpich", rank=0, size=2, local_rank=0, local_size=2)


class Job:
    """Two ranks without MPI.

    Args:
        folder: of their pipes.
        command: each rank's; "" leaves the supervisors waiting before they start it.
    """

    def __init__(self, folder: Path, command: str) -> None:
        self.pipes = RankPipes(folder, range(2)) if command else None
        if not command:
            os.mkfifo(folder / "events")  # which nobody reads
        words = [sys.executable, "-c", LAUNCHER, str(folder), *shlex.split(command or "none")]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE)
        self.siblings = Siblings(MINE, lambda: [psutil.Process(self.process.pid)])

    def seen(self) -> bool:
        """Have both supervisors been found?"""
        return not self.siblings.ended() and self.siblings.count == 2

    def kill(self, rank: int) -> None:
        """A supervisor. Its process id is not always the higher one: the system begins again with low ones."""
        of_ranks = {one.environ()["PMI_RANK"]: one for one in map(psutil.Process, children(self.process.pid))}
        of_ranks[str(rank)].kill()

    def end(self) -> None:
        """All of it."""
        for pid in children(self.process.pid):
            psutil.Process(pid).kill()
        self.process.communicate()
        if self.pipes:
            self.pipes.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    """``start("sleep 60")`` starts two ranks."""
    started: list[Job] = []

    def begin(command: str) -> Job:
        started.append(Job(tmp_path, command))
        return started[-1]

    yield begin
    for each in started:
        each.end()


def test_a_rank_that_has_not_started_is_late_and_not_lost(
    start: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its supervisor has no child: a machine may be slow. Killed, it is lost."""
    job = start("")
    assert eventually(job.seen)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1e6)
    assert job.siblings.ended() == ""
    job.kill(1)
    assert eventually(lambda: job.siblings.ended() == "rank 1")


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="the system does not show processes' names")
def test_a_rank_that_has_ended_is_lost_though_its_supervisor_stays(start: Callable[[str], Job]) -> None:
    """Also for a rank that looks only now, and though the others have not ended."""
    job = start("sh -c 'if [ $PMI_RANK = 1 ]; then exit 3; else sleep 60; fi'")
    assert eventually(lambda: Siblings(MINE, lambda: [psutil.Process(job.process.pid)]).ended() == "rank 1")
    assert len(children(job.process.pid)) == 2


def test_where_processes_are_not_shown_nobody_is_lost_who_runs(
    start: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without /proc, as on macOS: who has ended is lost, and who runs is not."""
    job = start("sleep 60")
    assert eventually(job.seen)
    for module in ("workbench.transport.bootstrap.peers", "workbench.machine"):
        monkeypatch.setattr(f"{module}.process_state", lambda pid: None)
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/proc/self/stat" and exists(path))
    assert job.siblings.ended() == ""
    job.kill(1)
    assert eventually(lambda: job.siblings.ended() == "rank 1")
