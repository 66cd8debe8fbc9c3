"""Elastic jobs on two hosts: ranks, agents and whole hosts are lost, hosts join and leave; the training ends right."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from elastic_jobs import Job
from hosts import Hosts
from running import environment
from test_run_in_slurm import WORKBENCH

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(150)]

SCRIPT = """
import os, sys, time
import numpy as np
import workbench as hvd
from workbench import elastic
from workbench.job.objects import broadcast_object

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
    """An elastic job whose launcher is on the first host."""

    def __init__(self, hosts: Hosts, folder: Path, words: tuple[str, ...]) -> None:
        self.hosts, script, self._over = hosts, folder / "train.py", folder / "over"
        script.write_text(SCRIPT)
        env = environment() | {"WORKBENCH_PEER_TIMEOUT_S": "4", "TMPDIR": str(folder)}
        command = [*words, sys.executable, str(script), str(self._over)]
        super().__init__(folder, command, script, env, hosts.words(0, WORKBENCH, "run"))

    def pid(self, worker: int) -> int:
        """The process of a worker."""
        return int(self.wait_for(rf"\[{worker}@wb\d\]<stdout>:begins with \d at \d+ (\d+)")[1])

    def agents(self, host: int) -> list[psutil.Process]:
        """Those on a host."""
        network = self.hosts.run(host, "readlink", "/proc/self/ns/net").stdout.strip()
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{process.pid}/ns/net") == network:
                    found.append(process)
        mine = [each for each in found if "hosts.agent" in " ".join(each.info["cmdline"] or [])]
        return [each for each in mine if "python" in each.info["name"]]

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


Start = Callable[..., HostsJob]


@pytest.fixture
def start(hosts: Hosts, tmp_path: Path) -> Iterator[Start]:
    """``start("-H", "wb1:2,wb2:2", …)`` starts the training."""
    jobs: list[HostsJob] = []

    def begin(*words: str) -> HostsJob:
        jobs.append(HostsJob(hosts, tmp_path, words))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(20)
            job.process.kill()


@pytest.mark.thorough
def test_the_agent_of_a_host_is_killed(start: Start) -> None:
    """Its ranks end with it; the host is opened again, and new ones join."""
    job = start("-H", "wb1:2,wb2:2", "--min-np", "1")
    job.pid(3)
    for agent in job.agents(1):
        agent.kill()
    job.wait_for("host wb2 was lost")
    job.wait_for(r"begins with 2 at (?!0)")
    job.wait_for(r"begins with 4 at (?!0)")
    text = job.ends_well(4)
    assert "begins with 4 at" in text.partition("host wb2 was lost")[2]


@pytest.mark.thorough
def test_the_cable_of_a_host_is_pulled(start: Start, hosts: Hosts) -> None:
    """The host of rank 0 and the launcher goes on alone; the other's ranks belong to nothing any more."""
    job = start("-H", "wb1:2,wb2:2", "--min-np", "1", "--blacklist-cooldown-range", "60", "60")
    lost = [job.pid(2), job.pid(3)]
    hosts.cut(1)
    job.wait_for("host wb2 was lost")
    job.wait_for(r"epoch \d+ begins with 2 ranks")
    hosts.heal(1)
    job.ends_well(2)
    until = time.monotonic() + 30
    while any(psutil.pid_exists(pid) for pid in lost):
        assert time.monotonic() < until, "ranks of the lost host still run"
        time.sleep(0.1)


def test_a_host_joins_and_one_leaves(start: Start, tmp_path: Path) -> None:
    """By the discovery script; the one that leaves has rank 0."""
    found = tmp_path / "hosts"
    found.write_text("wb1:2\n")
    job = start("--min-np", "1", "--host-discovery-script", f"cat {found}")
    job.wait_for("begins with 2 at 0")
    found.write_text("wb1:2\nwb2:2\n")
    job.wait_for("begins with 4 at (?!0)")
    found.write_text("wb2:2\n")
    leave = job.wait_for("2 workers will leave")
    job.wait_for("begins with 2 at (?!0)", after=leave.end())
    text = job.ends_well(2)
    assert len(re.findall(r"\[[23]@wb2\]<stdout>:done", text)) == 2, text
