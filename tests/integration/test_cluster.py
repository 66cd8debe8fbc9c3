"""``cluster.up`` and ``down`` with the real ipyparallel and the real mpiexec, as a notebook uses them."""

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
from running import eventually, open_to_others
from thorough import once_more

from workbench import cluster
from workbench.errors import LaunchError
from workbench.launch.ranks.watchdog import Leftovers
from workbench.launch.start import mpi

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

Starter = Callable[[str], tuple[subprocess.Popen[str], str]]
Children = Callable[[], list[psutil.Process]]

# A script that starts a cluster, says its tag, and then does what `{then}` says.
SCRIPT = """
import sys, time
from workbench import cluster
c = cluster.up(2, quiet=True)
print(c.id, flush=True)
{then}
"""


# Read by every Python that starts with its folder on the path: one scheduler of the controller begins late.
LATE_SCHEDULER = """
import sys, time
if "ipyparallel.controller" in sys.orig_argv:
    from zmq.devices import basedevice
    begin = basedevice.Device.run
    def run(device):
        time.sleep(1.5 if device.name == {name!r} else 0.0)
        begin(device)
    basedevice.Device.run = run
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An IPython directory of its own, and whatever a failing test leaves running is stopped."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    yield
    cluster.down()


@pytest.fixture
def script() -> Iterator[Starter]:
    """Runs SCRIPT in a process of its own that may open few files; gives the process and the tag of its cluster."""
    started: list[tuple[subprocess.Popen[str], str]] = []

    def start(then: str) -> tuple[subprocess.Popen[str], str]:
        # Their files are more than that: the limit is raised.
        command = ["bash", "-c", 'ulimit -Sn 64; exec "$0" "$@"', sys.executable, "-c", SCRIPT.format(then=then)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=mpi.environment(1), stdin=pipe, stdout=pipe, text=True)
        assert process.stdout is not None
        started.append((process, process.stdout.readline().strip()))
        return started[-1]

    yield start
    for process, tag in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()
        Leftovers(tag).wipe()


def gone(tag: str, timeout_s: float = 40.0) -> bool:
    """Is no process left with this tag?"""
    return eventually(lambda: not Leftovers(tag).processes(), timeout_s)


def segments(pids: list[int]) -> set[str]:
    """The shared memory files of these processes."""
    return set(re.findall(r"/dev/shm/mpich\S+", "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)))


def program(path: Path, text: str) -> str:
    """A shell script that takes mpiexec's place."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_hard_limit_of_open_files_is_named() -> None:
    """Engines and their hub open dozens of files each."""
    words = ["bash", "-c", 'ulimit -n 64; exec "$0" "$@"', sys.executable, "-c", SCRIPT.format(then="")]
    hard = subprocess.run(words, capture_output=True, text=True)
    assert re.search(r"LaunchError: 2 engines and their hub need \d+ open files, .* 64 \(ulimit -Hn\)", hard.stderr)


def test_engines_are_ranks_and_down_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    new_children: Children,
    script: Starter,
) -> None:
    """Engine id = MPI rank, in the caller's folder, with threads limited; after ``down`` no process and no file.

    Beside it another process has a cluster; the end of that one, without ``down``, takes its own ranks and no other's.
    No process listens where another machine could reach it, but where this MPI's mpiexec cannot do otherwise.
    """
    monkeypatch.chdir(tmp_path)
    with cluster.up(2) as c:
        threads = max(1, len(os.sched_getaffinity(0)) // 2)
        each = f"{threads} thread{'s' if threads > 1 else ''} each"
        assert capsys.readouterr().out == f"2 engines ready: ids 0-1 are MPI ranks 0-1, {each}\n"
        assert repr(c) == "<Cluster: 2 MPI ranks>"
        assert (c.view["mpi_rank"], c.view["mpi_size"]) == ([0, 1], [2, 2])
        assert c.view.apply(os.getpid) == c.pids()
        assert c.view.apply(os.getcwd) == [str(tmp_path)] * 2
        assert c.view.apply(os.getenv, "OMP_NUM_THREADS") == [str(threads)] * 2
        assert c.view.apply(eval, "__import__('workbench.errors').__name__") == ["workbench"] * 2
        c.view.execute("import numpy, workbench as hvd; hvd.init(); hvd.allreduce(numpy.ones(4))")
        assert len(Leftovers(c.id).processes()) >= 7
        assert not mpi.forker(mpi.find_mpiexec()) or not open_to_others(Leftovers(c.id).processes())
        shared, folder = segments(c.pids()), c._job.folder
        process, theirs = script("sys.stdin.readline()")
        assert Leftovers(theirs).processes()
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
        assert gone(theirs, timeout_s=0.0)
        assert c.healthy()
        assert c.view.apply(os.getpid) == c.pids()
    assert not Leftovers(c.id).processes()
    assert not any(Path(path).exists() for path in shared)
    assert not folder.exists()
    assert not (tmp_path / "ipython").exists()
    assert not new_children()
    assert repr(c) == "<Cluster: stopped>"
    c.down()
    cluster.down()


@pytest.mark.parametrize("name", ["DirectScheduler", once_more("ControlScheduler")])
def test_a_scheduler_that_begins_late_loses_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are let in when all of the controller listens: what comes for an engine unknown to it is dropped."""
    (tmp_path / "sitecustomize.py").write_text(LATE_SCHEDULER.format(name=name))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with cluster.up(1, quiet=True, timeout_s=30) as c:
        c.client.send_signal(0, targets=c.client.ids, block=True)
        assert c.view.apply(os.getpid) == c.pids()


def test_killed_kernel_leaves_nothing(script: Starter) -> None:
    """After kill -9 of the process that called ``up``, its ranks busy in MPI, all is gone.

    The engines have come though the process might open 64 files only: a soft limit is raised.
    """
    process, tag = script("c.view.apply_async(eval, 'MPI.COMM_SELF.recv()'); time.sleep(60)")
    time.sleep(0.5)
    pids = [each.pid for each in Leftovers(tag).processes()]
    shared = segments(pids)
    assert len(pids) >= 7
    process.kill()
    process.wait()
    assert gone(tag)
    time.sleep(0.5)
    assert not any(Path(path).exists() for path in shared)


def test_missing_or_wrong_mpiexec_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """A path without a program, and an mpiexec of another vendor, are errors that name the cure."""
    with pytest.raises(LaunchError, match="no program /no/such/mpiexec"):
        cluster.up(2, mpiexec="/no/such/mpiexec")
    other = "mpiexec (Open MPI) 5.0.11" if mpi.library_vendor() == "MPICH" else "HYDRA build details:"
    fake = program(tmp_path / "mpiexec", f"echo '{other}'")
    with pytest.raises(LaunchError, match=r"do not match: .*mpi4py uses .*up\(n, mpiexec=...\)"):
        cluster.up(2, mpiexec=fake)
    with pytest.raises(ValueError, match="at least 1 rank"):
        cluster.up(0)
    assert cluster.current() is None


@pytest.mark.parametrize(
    ("text", "timeout_s", "said"),
    [
        ("echo no slots left; exit 3", 60.0, "engines ended with exit code 3"),
        ("echo waiting for a node; exec sleep 60", 4.0, "deadline passed before all engines had registered"),
    ],
    ids=["ends", "hangs"],
)
def test_failed_start_says_why_and_leaves_nothing(
    tmp_path: Path, text: str, timeout_s: float, said: str, new_children: Children
) -> None:
    """A start that fails or hangs ends in an error with the reason, the log's last lines and a cure."""
    vendor = {"MPICH": "HYDRA build details:", "Open MPI": "mpiexec (Open MPI) 5.0.11"}[mpi.library_vendor()]
    fake = program(tmp_path / "mpiexec", f"""[ "$1" = --version ] && echo "{vendor}" && exit\n{text}""")
    with pytest.raises(LaunchError) as caught:
        cluster.up(2, mpiexec=fake, timeout_s=timeout_s)
    report = str(caught.value)
    assert said in report
    assert f"| {text.partition(';')[0][5:]}" in report
    assert re.search(rf"Does this work in a terminal\? {re.escape(str(fake))} .*-n 2", report)
    assert cluster.current() is None
    assert not new_children()


def test_a_rank_cannot_start_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """``up`` in a ``%%px`` cell, so on a rank of another job, is refused."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(LaunchError, match="without %%px"):
        cluster.up(2)
