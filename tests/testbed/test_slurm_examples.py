"""The practical session's scripts as a Slurm job of two hosts: ``sbatch`` with ``srun``, and with ``workbench run``."""

from __future__ import annotations

import faulthandler
import re
import time
from pathlib import Path

import pytest
from hosts import Hosts
from test_launchers import SHORT_ADDRESSES
from test_run_in_slurm import WORKBENCH, called
from thorough import once_more

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(200)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUN = f"{WORKBENCH} run"
BLOCK = re.compile(
    r"MPI_size = (\d+), MPI_rank = (\d+), MPI_local_size = (\d+),  MPI_local_rank = (\d+) platform = (\S+)"
)


def submitted(hosts: Hosts, folder: Path, tasks: int, *lines: str, limit_s: float = 150.0) -> str:
    """What a batch script on two hosts prints; it has to succeed."""
    faulthandler.cancel_dump_traceback_later()  # there is a deadline, and nothing to see here
    script = folder / "job.sbatch"
    variables = [f"export {name}={text}" for name, text in SHORT_ADDRESSES.items()]
    head = ["#!/bin/sh", "#SBATCH --nodes=2", f"#SBATCH --ntasks-per-node={tasks}", f"#SBATCH --output={folder}/out"]
    script.write_text("\n".join([*head, "set -e", *variables, *lines]) + "\n")
    done = called(hosts, "sbatch", "--parsable", str(script), folder=folder)
    assert done.returncode == 0, done.stderr
    job, until = done.stdout.strip(), time.monotonic() + limit_s
    while (state := called(hosts, "squeue", "-h", "-t", "all", "-o", "%T", "-j", job).stdout.strip()) not in (
        *("", "COMPLETED", "FAILED", "CANCELLED"),
    ):
        assert time.monotonic() < until, (folder / "out").read_text()[-4000:]
        time.sleep(0.2)
    text = (folder / "out").read_text()
    assert state in ("", "COMPLETED"), f"{state}: {text[-6000:]}"
    return text


@pytest.mark.parametrize(
    ("command", "cyclic"),
    [
        once_more("srun --mpi=pmi2 --distribution=cyclic python", True),
        once_more("srun --mpi=none --distribution=cyclic python", True),
        once_more(f"{RUN} python", False),
        once_more(f"{RUN} --mpi python", False),
    ],
    ids=["srun with MPI", "srun", "workbench run", "workbench run --mpi"],
)
def test_the_block_that_the_session_prints(command: str, cyclic: bool, slurm: Hosts, tmp_path: Path) -> None:
    """Two hosts with three ranks each, as on the slides: there the ranks go round, one host after the other."""
    found = BLOCK.findall(submitted(slurm, tmp_path, 3, f"{command} {EXAMPLES}/test_horovod.py"))
    cases = [(rank, rank // 2, rank % 2) if cyclic else (rank, rank % 3, rank // 3) for rank in range(6)]
    right = [("6", str(rank), "3", str(local), f"wb{host + 1}") for rank, local, host in cases]
    assert sorted(found, key=lambda each: int(each[1])) == right


@pytest.mark.thorough
def test_mpirun_as_the_slides_type_it(slurm: Hosts, tmp_path: Path) -> None:
    """In a batch script whose shell `workbench env` has made ready: all ranks of both hosts are one job."""
    ready = f'eval "$({WORKBENCH} env)"'
    found = BLOCK.findall(submitted(slurm, tmp_path, 2, ready, f"mpirun -n 4 python {EXAMPLES}/test_horovod.py"))
    assert sorted((size, rank, host) for size, rank, _, _, host in found) == [
        ("4", str(rank), f"wb{1 + rank // 2}") for rank in range(4)
    ]


HOROVOD = f"{RUN} --as-horovod python"
SCRIPTS = [
    once_more("pytorch_horovod.py --epochs 1 --limit 200", "srun --mpi=pmi2 python", "accuracy"),
    once_more("pytorch_mnist.py --epochs 1 --limit 200", f"{RUN} python", "accuracy"),
    once_more("pytorch_adasum.py --steps 10", f"{RUN} python", "loss"),
    once_more(
        "pytorch_synthetic_benchmark.py --model resnet18 --batch-size 2 --image-size 32 --num-warmup-batches 1 "
        "--num-batches-per-iter 1 --num-iters 2",
        "srun --mpi=none python",
        "img/sec",
    ),
    once_more("tensorflow_horovod.py --epochs 1 --limit 200", HOROVOD, "accuracy"),
    once_more("tensorflow_horovod_basic.py", HOROVOD, "accuracy"),
    once_more("tensorflow_mnist_v1.py --steps 20 --limit 200", HOROVOD, "loss"),
    once_more("keras_mnist.py --epochs 1 --warmup-epochs 1 --limit 200", "srun --mpi=none python", "accuracy"),
    once_more("jax_mnist.py --epochs 1 --limit 200", f"{RUN} python", "accuracy"),
]


@pytest.mark.parametrize(("script", "command", "said"), SCRIPTS)
def test_the_example_scripts(script: str, command: str, said: str, slurm: Hosts, tmp_path: Path) -> None:
    """Each trains on two ranks of two hosts, shortened by its own options, and reports its result."""
    text = submitted(slurm, tmp_path, 2, f"{command} {EXAMPLES}/{script}")
    assert said in text.lower(), text
