"""Checkpoints of a job whose ranks are killed and replaced while it trains, and of one that is killed as a whole."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from elastic_jobs import Job

from workbench.elastic import read_checkpoint
from workbench.elastic.checkpoint_files import complete

pytestmark = [pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(200)]
TRAIN = """
import os, sys, time
import numpy as np
import workbench as hvd
from workbench import elastic
from workbench.job.objects import broadcast_object

folder, last, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
enough = folder + ".enough"
hvd.init()
state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, sum=np.zeros(200_001))
state.checkpoint(folder, every=every)

@elastic.run
def train(state):
    print(f"begins with {hvd.size()} at {state.step}", flush=True)
    while state.step < last and not hvd.allreduce(np.float64(os.path.exists(enough)), name="enough"):
        state.sum = state.sum + hvd.allreduce(np.full(200_001, state.step, np.float64), name="mean")
        state.step += 1
        state.commit()
        time.sleep(0.01)

train(state)
assert (state.sum == sum(range(state.step))).all(), state.sum
print(f"done {state.step} of {hvd.size()}", flush=True)
"""


class Saving(Job):
    """A running ``workbench run`` whose ranks write checkpoints."""

    def __init__(self, folder: Path, words: str, steps: int, every: int = 3) -> None:
        script = folder / "train.py"
        script.write_text(TRAIN)
        command = ["python", str(script), str(folder / "checkpoints"), str(steps), str(every)]
        super().__init__(folder, [*words.split(), *command], script)

    def kill_all(self) -> None:
        """Launcher and ranks, by kill -9, as a machine that loses power."""
        if self.process.poll() is None:
            family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
            for each in family:
                try:
                    each.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(family, timeout=20)
        self.process.wait(20)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Saving]]:
    """Those that a test has started; none is left."""
    started: list[Saving] = []
    yield started
    for job in started:
        job.kill_all()


def written_from(folder: Path, number: int, job: Saving, limit_s: float = 60.0) -> None:
    """Wait until a checkpoint of this number or a later one is whole."""
    until = time.monotonic() + limit_s
    while not (folder.exists() and (complete(folder) or [0])[-1] >= number):
        assert time.monotonic() < until, job.text()
        assert job.process.poll() is None, job.text()
        time.sleep(0.02)


def test_ranks_are_killed_and_checkpoints_go_on(jobs: list[Saving], tmp_path: Path) -> None:
    """Rank 0 dies, then another: the next rank 0 takes the folder, and writes on; training ends with the right sum."""
    folder = tmp_path / "checkpoints"
    job = Saving(tmp_path, "-np 3 --min-np 2", 100_000)
    jobs.append(job)
    written_from(folder, 2, job)
    for which in (min, max):
        job.kill(which(job.ranks()))
        newest = complete(folder)[-1]
        written_from(folder, newest + 3, job)
    (tmp_path / "checkpoints.enough").touch()
    assert job.process.wait(120) == 0, job.text()
    found = read_checkpoint(folder)
    assert job.text().count(f"done {found['step']}") >= 2, job.text()
    assert (found["sum"] == sum(range(found["step"]))).all()
    starts = [int(step) for step in re.findall(r"begins with \d at (\d+)", job.text())]
    assert starts.count(0) == 3, "nobody went back to the beginning, nor to the disk"


@pytest.mark.thorough
def test_more_deaths_than_survivors(jobs: list[Saving], tmp_path: Path) -> None:
    """Launcher and all ranks are killed at once: another job, of other ranks, goes on from the newest checkpoint."""
    folder = tmp_path / "checkpoints"
    job = Saving(tmp_path, "-np 3 --min-np 2", 100_000)
    jobs.append(job)
    written_from(folder, 3, job)
    job.kill_all()
    step = read_checkpoint(folder)["step"]
    assert step >= 5
    again = Saving(tmp_path, "-np 2 --min-np 1", step + 20)
    jobs.append(again)
    assert again.process.wait(120) == 0, again.text()
    assert re.findall(r"begins with \d at (\d+)", again.text()) == [str(step)] * 2, again.text()
    assert read_checkpoint(folder)["step"] == step + 20


def test_all_ranks_are_asked_to_leave(jobs: list[Saving], tmp_path: Path) -> None:
    """SIGTERM to the launcher, which asks each: the commit at which they leave is on the disk, due or not."""
    folder = tmp_path / "checkpoints"
    job = Saving(tmp_path, "-np 2 --min-np 1", 100_000, every=100_000)
    jobs.append(job)
    job.wait_for("begins with 2 at 0", times=2)
    time.sleep(0.5)
    assert complete(folder) == []
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 128 + signal.SIGTERM, job.text()
    step = read_checkpoint(folder)["step"]
    assert step > 1
    again = Saving(tmp_path, "-np 3 --min-np 1", step + 5)
    jobs.append(again)
    assert again.process.wait(120) == 0, again.text()
    assert re.findall(r"begins with \d at (\d+)", again.text()) == [str(step)] * 3, again.text()
