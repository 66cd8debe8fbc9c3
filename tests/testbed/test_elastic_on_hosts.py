"""Elastic jobs on two hosts over ssh: an agent and a whole host are lost; the training ends right.

Hosts that join and leave are in tests/launch/hosts/test_invented_hosts.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from elastic_jobs import HostsJob
from hosts import Hosts
from running import environment
from test_run_in_slurm import WORKBENCH

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(150)]


class OverSsh(HostsJob):
    """Its launcher is on the first host."""

    def __init__(self, hosts: Hosts, folder: Path, words: tuple[str, ...]) -> None:
        self.hosts = hosts
        env = environment() | {"WORKBENCH_PEER_TIMEOUT_S": "4"}
        super().__init__(folder, words, env, hosts.words(0, WORKBENCH, "run"))

    def pid(self, worker: int) -> int:
        """The process of a worker."""
        return int(self.wait_for(rf"\[{worker}@wb\d\]<stdout>:begins with \d at \d+ (\d+)")[1])


Start = Callable[..., OverSsh]


@pytest.fixture
def start(hosts: Hosts, tmp_path: Path) -> Iterator[Start]:
    """``start("-H", "wb1:2,wb2:2", …)`` starts the training."""
    jobs: list[OverSsh] = []

    def begin(*words: str) -> OverSsh:
        jobs.append(OverSsh(hosts, tmp_path, words))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(20)
            job.process.kill()


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
