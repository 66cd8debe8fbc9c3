"""Slurm on the hosts of a test bed."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hosts import Hosts
from thorough import once_more

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

WHO = "echo $SLURM_PROCID $(hostname) $CUDA_VISIBLE_DEVICES"


def lines(hosts: Hosts, *command: str) -> list[str]:
    """What a command prints on the first host, sorted."""
    done = hosts.run(0, *command)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def wait_for(hosts: Hosts, state: str, job: str) -> None:
    """Until a job is in a state; the empty one is that of a job that has ended."""
    until = time.monotonic() + 20.0
    while hosts.run(0, "squeue", "-h", "-t", "all", "-o", "%T", "-j", job).stdout.strip() not in state.split(","):
        assert time.monotonic() < until, hosts.run(0, "squeue", "-t", "all").stdout
        time.sleep(0.05)


def test_srun_on_two_hosts(slurm: Hosts) -> None:
    """Tasks are numbered by the order of the hosts."""
    assert lines(slurm, "srun", "-N2", "--ntasks-per-node=2", "sh", "-c", WHO) == ["0 wb1", "1 wb1", "2 wb2", "3 wb2"]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("--gpus-per-task=1", ["0 wb1 0", "1 wb1 1", "2 wb2 0", "3 wb2 1"]),
        once_more("--gres=gpu:2", ["0 wb1 0,1", "1 wb1 0,1", "2 wb2 0,1", "3 wb2 0,1"]),
    ],
)
def test_gpus_are_given_out(slurm: Hosts, asked: str, given: list[str]) -> None:
    """A task sees the GPUs of its own, or all of its job on the host."""
    assert lines(slurm, "srun", "-N2", "--ntasks-per-node=2", asked, "sh", "-c", WHO) == given


def test_salloc_and_the_names_of_its_hosts(slurm: Hosts) -> None:
    """A command in an allocation learns the hosts' names, and reaches them by srun and by ssh."""
    script = "scontrol show hostnames; srun hostname; for one in $(scontrol show hostnames); do ssh $one hostname; done"
    assert lines(slurm, "salloc", "-N2", "sh", "-c", script) == ["wb1"] * 3 + ["wb2"] * 3


def test_sbatch(slurm: Hosts, tmp_path: Path) -> None:
    """A script runs on the first host of its allocation, and writes where it was said to."""
    script, out = tmp_path / "job.sh", tmp_path / "job.out"
    script.write_text("#!/bin/sh\nhostname\nsrun hostname | sort\n")
    (said,) = lines(slurm, "sbatch", "-N2", f"--output={out}", str(script))
    wait_for(slurm, ",COMPLETED", said.split()[-1])
    assert out.read_text().split() == ["wb1", "wb1", "wb2"]


def test_scancel_ends_every_task(slurm: Hosts, tmp_path: Path) -> None:
    """The tasks on both hosts get SIGTERM, and the hosts are free again."""
    task = f"trap 'touch {tmp_path}/$SLURM_PROCID.ended; exit' TERM; touch {tmp_path}/$SLURM_PROCID.began; "
    task += "while :; do sleep 0.1; done"
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\nexec srun sh -c '{task.replace(chr(39), chr(34))}'\n")
    (said,) = lines(slurm, "sbatch", "-N2", f"--output={tmp_path}/job.out", str(script))
    job = said.split()[-1]
    until = time.monotonic() + 20.0
    while len(list(tmp_path.glob("*.began"))) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert lines(slurm, "scancel", job) == []
    wait_for(slurm, ",CANCELLED", job)
    assert sorted(path.name for path in tmp_path.glob("*.ended")) == ["0.ended", "1.ended"]


def test_the_users_of_mpi_are_served(slurm: Hosts) -> None:
    """Slurm speaks the protocol of MPICH."""
    said = slurm.run(0, "srun", "--mpi=list")
    assert re.search(r"\bpmi2\b", said.stdout + said.stderr)
