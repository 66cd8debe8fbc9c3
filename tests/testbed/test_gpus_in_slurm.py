"""Which GPUs the ranks of ``workbench run`` see in a Slurm job, however they were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm as slurm_cluster
from hosts import Hosts
from namespaces import CannotMakeHosts
from test_run_in_slurm import WORKBENCH, called, lines
from thorough import once_more

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

SHOW = ["sh", "-c", "echo $RANK $(hostname) $CUDA_VISIBLE_DEVICES"]
OWN = ["0 wb1 0", "1 wb1 1", "2 wb2 0", "3 wb2 1"]
TWO_EACH = ["0 wb1 0,1", "1 wb1 2,3", "2 wb2 0,1", "3 wb2 2,3"]
ALL_OF_TWO = ["0 wb1 0,1", "1 wb1 0,1", "2 wb2 0,1", "3 wb2 0,1"]
ALL_OF_FOUR = ["0 wb1 0,1,2,3", "1 wb1 0,1,2,3", "2 wb2 0,1,2,3", "3 wb2 0,1,2,3"]
SHARED = ["0 wb1 0", "1 wb1 0", "2 wb2 0", "3 wb2 0"]


@pytest.fixture(scope="module")
def with_four() -> Iterator[Hosts]:
    """Two hosts with Slurm and 4 GPUs each."""
    hosts = Hosts(2)
    try:
        try:
            hosts.up()
            slurm_cluster.start(hosts, gpus=4)
        except CannotMakeHosts as reason:
            pytest.skip(str(reason))
        yield hosts
    finally:
        hosts.down()


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ("--gpus-per-task=1", OWN),
        once_more("--gpus-per-task=2", TWO_EACH),
        once_more("--gpus-per-task=1 --gpus=4", OWN),
        once_more("--gpus-per-node=2", ALL_OF_TWO),
        once_more("--gres=gpu:2", ALL_OF_TWO),
        once_more("--gpus-per-node=2 --gpu-bind=single:1", OWN),
        once_more("--gpus=8", ALL_OF_FOUR),
        once_more("--ntasks-per-gpu=2 --gpus=2", SHARED),
    ],
)
@pytest.mark.parametrize("way", [[], once_more(["--mpi"]), once_more(["--min-np", "4"])], ids=str)
def test_each_rank_has_its_own(asked: str, seen: list[str], way: list[str], with_four: Hosts) -> None:
    """As ``srun`` deals them to tasks; without a word about tasks each rank sees all of its host."""
    tasks = ["-n4"] if "ntasks-per-gpu" in asked else ["--ntasks-per-node=2"]
    show = ["sh", "-c", SHOW[2].replace("$RANK", "${RANK:-$HOROVOD_RANK}")]
    done = called(with_four, "salloc", "-Q", "-N2", *tasks, *asked.split(), WORKBENCH, "run", "-np", "4", *way, *show)
    assert lines(done.stdout) == seen, done.stdout + done.stderr


@pytest.mark.parametrize("asked", ["--gpus=4", once_more("--gpus-per-node=1")])
def test_no_rank_is_without_one_or_shares_unasked(asked: str, with_four: Hosts) -> None:
    """Of 4 GPUs Slurm gives 3 to one host, 1 to the other: refused with both numbers, until it is said how to share."""
    job = ["salloc", "-Q", "-N2", "--ntasks-per-node=2", asked, WORKBENCH, "run"]
    done = called(with_four, *job, *SHOW)
    assert (done.returncode, done.stdout) == (1, ""), done.stdout + done.stderr
    assert "wb2 has 1 GPU for 2 ranks, which need 2. Ask Slurm for as many on each host" in done.stderr
    done = called(with_four, *job, "--gpus", "all", *SHOW)
    assert lines(done.stdout)[2:] == ["2 wb2 0", "3 wb2 0"], done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(("asked", "seen"), [("--gpus-per-task=1", ["0", "1"]), ("--gpus=2", ["0,1", "0,1"])])
def test_on_one_host(asked: str, seen: list[str], with_four: Hosts, tmp_path: Path) -> None:
    """A job of one host deals out its GPUs likewise, and refuses likewise."""
    script = tmp_path / "job.sh"
    run = f"{WORKBENCH} run -np"
    script.write_text(f"#!/bin/sh\n{run} 2 sh -c 'echo $RANK $CUDA_VISIBLE_DEVICES'\n{run} 3 true\n")
    done = called(with_four, "sbatch", "--wait", "-N1", "-n2", asked, f"--output={tmp_path}/out", str(script))
    said = (tmp_path / "out").read_text()
    assert sorted(line.split()[-1] for line in said.splitlines() if "<stdout>" in line) == seen, said
    assert (done.returncode, "has 2 GPUs for 3 ranks" in said) == (1, True), said
