"""Rank 0 needs an open file for each rank; limits are set in processes of their own, for they cannot be taken back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from running import Runner

SERVER = """
import os, resource, socket, time
from workbench.errors import LaunchError
from workbench.config import Settings
from workbench.runtime.steady.stack import coordinator
from workbench.runtime.control.server import ControlServer

def serve(size):
    return ControlServer(coordinator(size, Settings()), b"secret", "127.0.0.1")
"""


def said_by(limit: str, script: str) -> subprocess.CompletedProcess[str]:
    """What a Python under ``ulimit`` says."""
    words = ["bash", "-c", f'ulimit {limit}; exec "$0" -c "$1"', sys.executable, SERVER + script]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parent)


def test_the_soft_limit_is_raised_for_the_ranks() -> None:
    """400 ranks and 256 files: the process may open more before the first rank comes."""
    done = said_by("-Sn 256", "serve(400); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 400)")
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(("limit", "right"), [("-Sn 256", "True"), ("-n 256", "256"), ("-Sn $(ulimit -Hn)", "True")])
def test_a_rank_between_hosts_may_open_what_it_is_allowed(limit: str, right: str) -> None:
    """Up to the hard limit, or 65,536 files where that is higher; never fewer than before."""
    script = """
from workbench.machine import MANY_FILES, allow_many_files
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
now = allow_many_files()
print(now if hard == 256 else now >= min(hard, MANY_FILES) and now == resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    assert said_by(limit, script).stdout.strip() == right


def test_a_hard_limit_that_is_too_low_is_said_at_once() -> None:
    """400 ranks and no more than 256 files: rank 0 does not wait for ranks that cannot come."""
    done = said_by("-n 256", "try: serve(400)\nexcept LaunchError as error: print(error)")
    assert done.stdout.startswith("Rank 0 of 400 ranks needs "), done.stderr
    assert "256 (ulimit -Hn)" in done.stdout


def test_files_that_run_out_later_are_named_once() -> None:
    """Where the script has opened all files there can be, one warning says why ranks cannot connect."""
    script = """
server = serve(3)
visitors = [socket.socket() for _ in range(3)]
files = []
try:
    while True: files.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
server.start()
for visitor in visitors: visitor.connect(server.address)
time.sleep(0.3)
for file in files: os.close(file)
server.stop.set()
server.join(5)
print("over", not server.is_alive())
"""
    done = said_by("-n 200", script)
    assert done.stdout == "over True\n", done.stderr
    assert done.stderr.count("Too many open files") == 1
    assert "200 (ulimit -Hn)" in done.stderr


FULL = """
import os, resource, subprocess, time
from workbench.machine import has_ended, why_stopped
ended = subprocess.Popen(["true"])
ended.wait()
files = []
try:
    while True: files.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
print(has_ended(os.getppid()), has_ended(1), has_ended(ended.pid), repr(why_stopped(os.getppid())))
"""


def test_who_is_alive_is_known_without_a_free_file() -> None:
    """And what is not known is alive: a process of this user, another's, and one that has ended."""
    assert said_by("-n 64", FULL).stdout == "False False True ''\n"


LEAKS = """
import os, resource, time, numpy as np, workbench as hvd
from workbench.runtime.control import liveness
looks, ask = [], liveness.has_ended
liveness.has_ended = lambda pid: (looks.append(pid), ask(pid))[1]
hvd.init()
hvd.allreduce(np.ones(1))  # whose first call imports something
files, limits = [], resource.getrlimit(resource.RLIMIT_NOFILE)
if hvd.rank() == 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
    try:
        while True: files.append(os.open("/dev/null", os.O_RDONLY))
    except OSError: pass
looks.clear()
while not hvd.allreduce(np.array([len(looks) > 5]), op=hvd.Min)[0]:
    time.sleep(0.1 * (hvd.rank() == 0))  # rank 1 looks for rank 0 when it has waited
for each in files: os.close(each)
print("after", hvd.allreduce(np.full(3, 1.0 + hvd.rank()), op=hvd.Sum)[0], flush=True)
hvd.shutdown()
"""


def test_a_rank_without_a_free_file_stays_in_the_job(jobs: Runner) -> None:
    """A loader has leaked all files: the ranks look for each other, and their collectives go on."""
    job = jobs.mpiexec(2, "-c", LEAKS, deadline_s=60.0, WORKBENCH_HEARTBEAT_S="0.02")
    assert job.code == 0, job.err(0) + job.err(1)
    assert [job.out(rank).strip() for rank in range(2)] == ["after 3.0"] * 2
