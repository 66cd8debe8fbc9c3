"""Elastic jobs in Slurm: a job that is made smaller, and one that is put back into the queue."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_jobs import Job
from hosts import Hosts
from running import environment
from test_run_in_slurm import SALLOC, WORKBENCH, called

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(150)]

TRAIN = """
import os, sys, time
import numpy as np
import workbench as hvd
from workbench import elastic
from workbench.job.objects import broadcast_object

folder, last = sys.argv[1], int(sys.argv[2])
hvd.init()
state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, sum=np.zeros(1000))
state.checkpoint(folder, every=5)

@elastic.run
def train(state):
    print(f"begins with {hvd.size()} at {state.step}", os.getpid(), flush=True)
    while state.step < last:
        state.sum = state.sum + hvd.allreduce(np.full(1000, state.step, np.float64), name="mean")
        state.step += 1
        state.commit()
        time.sleep(0.01)

train(state)
assert (state.sum == sum(range(last))).all(), state.sum
print("done", state.step, flush=True)
"""
DISCOVERY = """#!/bin/sh
scontrol show hostnames "$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %N)" | sed 's/$/:2/'
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The training script, beside a discovery script that asks Slurm for the job's hosts."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "hosts.sh").write_text(DISCOVERY)
    (tmp_path / "hosts.sh").chmod(0o755)
    return tmp_path / "train.py"


@pytest.fixture
def shrinking(slurm: Hosts, script: Path) -> Iterator[Job]:
    """A job on two hosts that looks for its hosts while it trains."""
    words = ["--min-np", "1", "--host-discovery-script", str(script.parent / "hosts.sh")]
    words += [sys.executable, str(script), str(script.parent / "kept"), "1500"]
    env = environment() | {"WORKBENCH_PEER_TIMEOUT_S": "4", "TMPDIR": str(script.parent)}
    job = Job(script.parent, words, script, env, slurm.words(0, *SALLOC, "--job-name=shrinks", WORKBENCH, "run"))
    yield job
    job.close()


@pytest.mark.thorough
def test_the_job_is_made_smaller(shrinking: Job, slurm: Hosts) -> None:
    """``scontrol update`` takes a host away: the ranks that are left go on, with the right sum."""
    shrinking.wait_for("begins with 4 at 0", limit_s=60)
    number = called(slurm, "squeue", "--noheader", "--name=shrinks", "--format=%A").stdout.strip()
    told = called(slurm, "scontrol", "update", f"JobId={number}", "NodeList=wb1")
    assert told.returncode == 0, told.stderr
    shrinking.wait_for("begins with 2 at (?!0)", limit_s=60)
    text = shrinking.end(90)
    assert shrinking.code == 0, text
    assert len(re.findall(r"<stdout>:done 1500", text)) == 2, text


@pytest.mark.thorough
def test_the_job_is_put_back_into_the_queue(slurm: Hosts, script: Path) -> None:
    """``scontrol requeue``: it begins again from the newest checkpoint, and not from the beginning."""
    folder, batch = script.parent, script.parent / "train.sbatch"
    run = f"{WORKBENCH} run {sys.executable} {script} {folder / 'kept'} 1200"
    lines = ["#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=2 --requeue --open-mode=append", f"exec {run}"]
    batch.write_text("\n".join(lines) + "\n")
    said = folder / "said"
    asked = called(slurm, "sbatch", "--parsable", f"--output={said}", str(batch), folder=folder)
    number = asked.stdout.strip()
    assert number.isdigit(), asked.stderr
    until = time.monotonic() + 60
    while len(list((folder / "kept").glob("*/manifest*"))) < 2:
        assert time.monotonic() < until, said.read_text()
        time.sleep(0.05)
    told = called(slurm, "scontrol", "requeue", number)
    assert told.returncode == 0, told.stderr
    until = time.monotonic() + 100
    while said.read_text().count("done 1200") < 4:
        state = called(slurm, "squeue", "--noheader", "--format=%T %r", f"--jobs={number}").stdout
        assert time.monotonic() < until, state + said.read_text()
        if "BeginTime" in state:  # Slurm waits for two minutes
            called(slurm, "scontrol", "update", f"JobId={number}", "StartTime=now")
        time.sleep(0.5)
    began = [int(step) for step in re.findall(r"begins with 4 at (\d+)", said.read_text())]
    assert began[:4] == [0] * 4
    assert len(began) == 8
    assert min(began[4:]) > 0, began
