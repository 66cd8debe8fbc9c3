"""No process of a job outlives it, however the job or its parent ends. Ordinary processes, no MPI."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from running import eventually

from workbench.errors import LaunchError
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.ranks.watchdog import TAG, Leftovers
from workbench.launch.start import mpi

# A process that leaves its parent, its session and its process group, as a daemon does.
DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(60)"
# The parent of a job: says its tag and folder, then sleeps until it is killed.
PARENT = """
import os, sys, time
from workbench.launch.ranks.process_tree import ProcessTree
job = ProcessTree(os.environ)
job.start("daemon", [sys.executable, "-c", {daemon!r}])
job.start("sleeper", ["sleep", "60"])
if {fork}:
    if not os.fork():
        time.sleep(60)
time.sleep(0.5)
print(job.id, job.folder, flush=True)
time.sleep(60)
"""


def words(process: psutil.Process) -> list[str]:
    """The command line, empty for a zombie."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs that are gone, with all their children, after the test."""
    started: list[psutil.Popen] = []

    def start(code: str, **env: str) -> psutil.Popen:
        command = [sys.executable, "-c", code]
        process = psutil.Popen(command, env=mpi.environment(1) | env, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        children = process.children() if process.is_running() else []
        for each in [process, *children]:
            with contextlib.suppress(psutil.Error):
                if not any(word.endswith("watchdog.py") for word in words(each)):  # a watchdog has work to do now
                    each.kill()
        process.wait()
        process.stdout.close()


def test_wipe_finds_daemons_by_their_tag(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """A process that has left parent, session and group is found and killed; another tag's is not touched."""
    tag = f"test-mine-{os.getpid()}"  # another run of these tests may be going on
    spawn(DAEMON, **{TAG: tag}).wait()
    other = spawn("import time; time.sleep(60)", **{TAG: "test-other"})
    mine = Leftovers(tag)
    assert eventually(lambda: len(mine.processes()) == 1)
    assert mine.wipe() == []
    assert mine.processes() == []
    assert other.poll() is None


def test_wipe_finds_untagged_descendants(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """A child that was started without the tag dies with its tagged parent."""
    code = "import subprocess, time; subprocess.Popen(['sleep', '60'], env={}); time.sleep(60)"
    spawn(code, **{TAG: "test-children"})
    leftovers = Leftovers("test-children")
    assert eventually(lambda: len(leftovers.processes()) == 2)
    family = leftovers.processes()
    leftovers.wipe()
    assert eventually(lambda: not any(each.is_running() and each.status() != "zombie" for each in family))


class Starting:
    """A process that is starting a program: the kernel shows its variables only from the fifth look on."""

    def __init__(self, env: dict[str, str]) -> None:
        self.pid, self.looks, self.killed, self._env = 2**22 + 1, 0, False, env

    def environ(self) -> dict[str, str]:
        self.looks += 1
        return self._env if self.looks > 4 else {}

    def cmdline(self) -> list[str]:
        return []

    def ppid(self) -> int:
        return 1

    def kill(self) -> None:
        self.killed = True


def test_wipe_waits_for_a_process_that_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What shows neither variables nor words yet may be tagged: the wipe goes on until it shows, and kills it."""
    process = Starting({TAG: "test-starting"})
    monkeypatch.setattr(psutil, "process_iter", lambda: [] if process.killed else [process])
    monkeypatch.setattr("workbench.launch.ranks.watchdog.runs", lambda pid: True)
    assert Leftovers("test-starting").wipe() == []
    assert process.killed


def test_followed_pid_is_killed_only_if_it_is_the_same_process(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """A pid is taken for the followed process only if its time of creation fits: pids are used again."""
    process = spawn("import time; time.sleep(60)")
    created = psutil.Process(process.pid).create_time()
    reused, true = Leftovers("test-reused"), Leftovers("test-true")
    reused.follow(process.pid, created - 100)
    reused.wipe()
    assert process.poll() is None
    true.follow(process.pid, created)
    true.wipe()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "with a forked child that holds the pipe"])
def test_killed_parent_leaves_nothing(spawn: Callable[..., subprocess.Popen[str]], fork: bool) -> None:
    """When the parent is killed with -9, the watchdog ends its job's processes, deletes the folder and goes."""
    if fork and not hasattr(os, "pidfd_open"):
        pytest.skip("without pidfd a forked child keeps the pipe open")
    parent = spawn(PARENT.format(daemon=DAEMON, fork=fork))
    assert parent.stdout is not None
    tag, folder = parent.stdout.readline().split()
    watchdogs = [each for each in psutil.Process(parent.pid).children() if tag in words(each)]
    forked = [each for each in psutil.Process(parent.pid).children() if words(each) == parent.args]
    assert len(watchdogs) == 1
    assert len(forked) == fork
    assert Leftovers(tag).processes()
    parent.send_signal(signal.SIGKILL)
    assert eventually(lambda: not Leftovers(tag).processes())
    assert eventually(lambda: not Path(folder).exists())
    assert eventually(lambda: not watchdogs[0].is_running() or watchdogs[0].status() == "zombie")
    for each in forked:
        each.kill()


def test_stop_is_idempotent_and_leaves_nothing(new_children: Callable[[], list[psutil.Process]]) -> None:
    """``stop`` ends the processes and the watchdog and deletes the folder; again, it does nothing."""
    job = ProcessTree(os.environ)
    job.start("sleeper", ["sleep", "60"])
    assert job.running()
    job.stop()
    job.stop()
    assert not job.running()
    assert not job.folder.exists()
    assert not Leftovers(job.id).processes()
    assert not new_children()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of forks beside threads
def test_forked_child_does_not_end_its_parents_job() -> None:
    """``stop`` in a forked child of the job's owner, at its exit for example, touches nothing."""
    job = ProcessTree(os.environ)
    job.start("sleeper", ["sleep", "60"])
    pid = os.fork()
    if not pid:
        job.stop()
        os._exit(0)
    os.waitpid(pid, 0)
    assert job.running()
    job.stop()


def test_wait_reports_a_dead_process_and_the_deadline() -> None:
    """Waiting ends at once when a process ends, and at the deadline; the report holds the process's last words."""
    job = ProcessTree(os.environ)
    try:
        job.start("sleeper", ["sleep", "60"])
        with pytest.raises(LaunchError, match="deadline passed before the rain"):
            job.wait("the rain", lambda: False, time.monotonic() + 0.1)
        job.start("talker", ["sh", "-c", "echo last words; exit 3"])
        with pytest.raises(LaunchError, match="talker ended with exit code 3 before the sun"):
            job.wait("the sun", lambda: False, time.monotonic() + 10)
        assert "| last words" in job.report()
        with pytest.raises(LaunchError, match="/no/such/program cannot be run"):
            job.start("nothing", ["/no/such/program"])
    finally:
        job.stop()


def test_watchdog_imports_nothing_heavy() -> None:
    """The watchdog's process loads none of the package, let alone MPI: it stays small."""
    program = str(Path(sys.modules["workbench.launch.ranks.watchdog"].__file__ or ""))
    code = f"import runpy, sys; runpy.run_path({program!r})"
    code += "; print([name for name in sys.modules if name.split('.')[0] in ('workbench', 'numpy', 'mpi4py', 'zmq')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
