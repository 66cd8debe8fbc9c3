"""``workbench run`` and ``workbench slurm`` on a Slurm cluster of two hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hosts import Hosts
from running import environment
from test_launchers import RIGHT, SCRIPT
from thorough import once_more

from workbench.launch.ranks.watchdog import TAG

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

WORKBENCH = shutil.which("workbench", path=str(Path(sys.executable).parent)) or "workbench"
SALLOC = ["salloc", "-Q", "-N2", "--ntasks-per-node=2"]


def called(hosts: Hosts, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command on the first host, where the package is imported from this checkout."""
    here = ["env", f"--chdir={folder}"] if folder else []
    return hosts.run(0, *here, *words, timeout_s=50.0, env=environment())


def lines(text: str) -> list[str]:
    """What ranks have printed, sorted; the prefix says the same of rank and host as the rank itself."""
    found = re.findall(r"^\[(\d+)@(\S+)\]<stdout>:(.*)$", text, re.MULTILINE)
    assert all(line.startswith(f"{rank} ") and f" {host} " in f"{line} " for rank, host, line in found), text
    return sorted(line for *_, line in found)


@pytest.mark.parametrize(("way", "ranks"), [once_more([], []), once_more(["--mpi"], ["-np", "4"])], ids=["tcp", "mpi"])
def test_all_hosts_of_the_job(way: list[str], ranks: list[str], slurm: Hosts) -> None:
    """Without ``-H`` the ranks go to all hosts of the job around; without ``-np`` there is one for each task."""
    done = called(slurm, *SALLOC, WORKBENCH, "run", *way, *ranks, sys.executable, "-c", SCRIPT)
    assert (done.returncode, lines(done.stdout)) == (0, RIGHT), done.stdout + done.stderr


@pytest.mark.parametrize(("host", "ranks"), [once_more("wb1", ["-np", "2"]), ("wb2", [])], ids=["here", "elsewhere"])
def test_a_job_of_one_host(host: str, ranks: list[str], slurm: Hosts) -> None:
    """The ranks are on the job's host, wherever the shell is; without ``-np`` there is one for each task."""
    show = ["sh", "-c", "echo $RANK $WORLD_SIZE $(hostname)"]
    done = called(slurm, "salloc", "-Q", "-w", host, "--ntasks-per-node=2", WORKBENCH, "run", "--gloo", *ranks, *show)
    said = sorted(line.partition(":")[2] for line in done.stdout.splitlines())
    assert (done.returncode, said) == (0, [f"{rank} 2 {host}" for rank in range(2)]), done.stdout + done.stderr


def test_all_components_of_a_heterogeneous_job(slurm: Hosts) -> None:
    """The ranks go to the hosts of each; MPI's launcher reaches the first alone, and is refused."""
    both = 'workbench=$1; shift; "$workbench" run "$@" && exec "$workbench" run --mpi true'
    job = ["salloc", "-Q", "-w", "wb1", "-n2", ":", "-w", "wb2", "-n2", "sh", "-c", both, "sh", WORKBENCH]
    done = called(slurm, *job, sys.executable, "-c", SCRIPT)
    assert (done.returncode, lines(done.stdout)) == (1, RIGHT), done.stdout + done.stderr
    assert "Leave out --mpi" in done.stderr, done.stderr


def test_the_rest_of_the_job_goes_on(slurm: Hosts) -> None:
    """A rank that fails gives its exit code, and the job's next command runs."""
    fails = f"{WORKBENCH} run sh -c 'exit $((RANK == 3 ? 7 : 0))'; echo code $?; srun -n4 --mpi=none hostname"
    done = called(slurm, *SALLOC, "sh", "-c", fails)
    assert sorted(done.stdout.split()) == ["7", "code", "wb1", "wb1", "wb2", "wb2"], done.stderr
    assert "Rank 3 on wb2 ended with exit code 7" in done.stderr


def test_a_script_is_written_submitted_and_followed(slurm: Hosts, tmp_path: Path) -> None:
    """The site's settings are in it; what the job writes is shown as it comes; its end gives the exit code."""
    (tmp_path / "workbench.toml").write_text('partition = "main"')
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["slurm", "--nodes", "2", "--tasks-per-node", "2", "--gpus-per-task", "1", "--time", "1:00"]
    done = called(slurm, WORKBENCH, *options, "train.sbatch", sys.executable, "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip() == (tmp_path / "train.sbatch").read_text().rstrip()
    for line in ("nodes=2", "ntasks-per-node=2", "gpus-per-task=1", "time=1:00", "partition=main"):
        assert f"#SBATCH --{line}\n" in done.stdout
    done = called(slurm, WORKBENCH, *options, "--submit", "train.sbatch", sys.executable, "train.py", folder=tmp_path)
    assert (done.returncode, lines(done.stdout)) == (0, RIGHT), done.stdout + done.stderr
    assert re.search(r"job (\d+) is submitted; scancel \1 ends it(.|\n)*job \1: completed", done.stderr)


@pytest.mark.thorough
def test_an_array_and_a_job_that_fails_are_followed(slurm: Hosts, tmp_path: Path) -> None:
    """Each task's output is shown; a failure gives the exit code."""
    array = ["slurm", "--submit", "--sbatch=--array=0-2", "--output", "%a.out", "array.sbatch"]
    done = called(slurm, WORKBENCH, *array, "sh", "-c", "echo task $SLURM_ARRAY_TASK_ID", folder=tmp_path)
    said = sorted(line.partition(":")[2] for line in done.stdout.splitlines())
    assert (done.returncode, said) == (0, [f"task {i}" for i in range(3)]), done.stdout + done.stderr
    done = called(slurm, WORKBENCH, "slurm", "--submit", "fails.sbatch", "false", folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed" in done.stderr


def test_what_slurm_refuses(slurm: Hosts, tmp_path: Path) -> None:
    """A wrong option of sbatch, more nodes than there are, and options in the wrong place: one clear line each."""
    wrong = ["--submit", "--sbatch=--partition=none", "a.sbatch", "true"]
    done = called(slurm, WORKBENCH, "slurm", *wrong, folder=tmp_path)
    assert (done.returncode, "Slurm refuses sbatch" in done.stderr) == (1, True), done.stderr
    done = called(slurm, WORKBENCH, "slurm", "--submit", "--nodes", "9", "a.sbatch", "true", folder=tmp_path)
    assert (done.returncode, "would wait forever: PartitionConfig" in done.stderr) == (1, True), done.stderr
    assert called(slurm, "squeue", "-h").stdout == ""
    done = called(slurm, WORKBENCH, "slurm", "a.sbatch", "--nodes", "2", "true", folder=tmp_path)
    assert (done.returncode, "First options, then a file" in done.stderr) == (1, True), done.stderr


def test_sync_is_for_ssh(slurm: Hosts) -> None:
    """In a Slurm job it is refused, with what to do."""
    done = called(slurm, *SALLOC, WORKBENCH, "run", "--sync", "true")
    assert (done.returncode, "--sync copies by ssh" in done.stderr) == (1, True), done.stderr


def test_scancel_leaves_nothing(slurm: Hosts, tmp_path: Path) -> None:
    """When the job is ended from outside, its ranks and their folders are gone from all hosts."""
    mark = f"600.{time.monotonic_ns()}"
    script = tmp_path / "wait.sbatch"
    script.write_text(f"#!/bin/sh\nexec {WORKBENCH} run -np 4 sleep {mark}\n")
    words = ["sbatch", "--parsable", "-N2", "--ntasks-per-node=2", f"--output={tmp_path}/out", str(script)]
    job = called(slurm, *words).stdout.strip()
    _until(lambda: len(_ranks(mark)) == 4, tmp_path)
    ours = folders(_ranks(mark)[0])
    assert len(ours) == 3, "the launcher's folder and one for each host were to be looked at"
    assert called(slurm, "scancel", job).returncode == 0
    _until(lambda: not _ranks(mark) and not any(folder.exists() for folder in ours), tmp_path)


def _ranks(mark: str) -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [each for each in found if (each.info["cmdline"] or [])[:2] == ["sleep", mark]]


def folders(rank: psutil.Process) -> set[Path]:
    """Those of a rank's job, on all hosts: as its watchdogs know them."""
    tag = rank.environ()[TAG].split(".")[0]
    words = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    return {Path(each[-1]) for each in words if len(each) > 2 and each[-2].startswith(tag)}


def _until(done: object, folder: Path) -> None:
    until = time.monotonic() + 45.0
    assert callable(done)
    while not done():
        assert time.monotonic() < until, (folder / "out").read_text()
        time.sleep(0.05)
