"""Many deaths one after another in one job: what a survivor and the launcher hold stays bounded."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from elastic_jobs import Job

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(580)]
TRAIN = """
import os, time
import numpy as np
import workbench as hvd
from workbench import elastic
from workbench.job.objects import broadcast_object

hvd.init()
state = elastic.ObjectState(broadcast_object, hvd.rank, step=0)

@elastic.run
def train(state):
    print(f"begins with {hvd.size()} at {state.step}", flush=True)
    while True:
        hvd.allreduce(np.full(1 << 18, state.step, np.float64), name="mean")
        state.step += 1
        state.commit()
        time.sleep(0.01)

train(state)
"""
KILLS = 60
MOST_MORE = 40 << 20  # bytes: the heap's holes grow at first


def held(pid: int) -> dict[str, int]:
    """What a process has."""
    process = psutil.Process(pid)
    return {
        "bytes": process.memory_info().rss,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "maps": len(process.memory_maps(grouped=False)),
        "children": len(process.children(recursive=True)),
    }


def test_what_a_survivor_holds_stays_bounded(tmp_path: Path) -> None:
    """Worker 1 outlives 60 others, as rank 1 at first and then as rank 0: 120 epochs."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    words = ["-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "0", "0", "python", str(script)]
    job = Job(tmp_path, words, script)
    try:
        job.wait_for(r"stdout>:begins with 3 at 0", 90, times=3)
        before: list[dict[str, int]] = []
        for turn in range(KILLS):
            victim = [worker for worker in sorted(job.ranks()) if worker != 1][turn % 2]
            printed = job.kill(victim)
            job.wait_for(r"stdout>:begins with 3 at", 90, times=3, after=printed)
            if turn == 5:
                time.sleep(0.5)
                before = [held(job.process.pid), held(job.ranks()[1])]
                shared = len(os.listdir("/dev/shm"))
        time.sleep(0.5)
        for old, new in zip(before, [held(job.process.pid), held(job.ranks()[1])], strict=True):
            assert new["bytes"] < old["bytes"] + MOST_MORE, (old, new)
            for what in ("descriptors", "threads", "maps", "children"):
                assert new[what] <= old[what] + 6, (what, old, new)
        assert len(os.listdir("/dev/shm")) <= shared + 6  # other tests may have some
        job.process.send_signal(signal.SIGINT)
        job.end()
    finally:
        job.close()
