"""Ranks that were started together know it, whatever has become of their environment; and so does any other script."""

from __future__ import annotations

import signal
import socket
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from thorough import once_more

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

MPI, GLOO, ELASTIC = ["--mpi"], ["--gloo"], ["--min-np", "2"]
BOTH_WAYS = pytest.mark.parametrize("way", [MPI, once_more(GLOO)], ids=str)
EVERY_WAY = pytest.mark.parametrize("way", [MPI, once_more(GLOO), once_more(ELASTIC)], ids=str)
ADDS = "import numpy as np, workbench as hvd\nhvd.init()\nprint(hvd.size(), hvd.allreduce(np.ones(1), op=hvd.Sum)[0])\n"
CLEARS = """
import os, workbench as hvd
hvd.init()
rank = hvd.rank()
hvd.shutdown()
if rank == 1:
    os.environ.clear()
hvd.init()
"""
HELPER = """
import subprocess, sys, workbench as hvd
hvd.init()
print(subprocess.run(["env", "-i", sys.executable, sys.argv[1]], capture_output=True, text=True).stdout.strip())
"""


def run(jobs: Runner, *words: str, n: int = 2, **env: str) -> Job:
    """``workbench run -np n …``."""
    return jobs.python("-m", "workbench.cli.main", "run", "-np", str(n), *words, deadline_s=60.0, **env)


def script(folder: Path, text: str, name: str = "script") -> str:
    """The path of a script with this text."""
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


PLAIN, WITHIN_A_SHELL = "{} {}", "sh -c '{} {}; exit $?'"


@pytest.mark.parametrize(
    ("way", "wrapper"),
    [(MPI, WITHIN_A_SHELL), once_more(GLOO, PLAIN), once_more(ELASTIC, WITHIN_A_SHELL), once_more(ELASTIC, PLAIN)],
    ids=str,
)
def test_a_lost_environment_is_an_error(jobs: Runner, tmp_path: Path, way: list[str], wrapper: str) -> None:
    """A rank that was started without the launcher's variables does not train alone: init() says what is wrong."""
    alone = wrapper.format(f"env -i PYTHONPATH={Path.cwd()} {sys.executable}", script(tmp_path, ADDS))
    job = run(jobs, *way, "sh", "-c", alone)
    assert job.code not in (0, None), job.report()
    assert "this process would train alone, but" in job.err(0), job.report()
    assert not job.out(0), job.report()


@BOTH_WAYS
def test_an_environment_lost_amid_a_job_is_an_error(jobs: Runner, tmp_path: Path, way: list[str]) -> None:
    """os.environ.clear() before the second init(): the rank is no world of one, and the others do not wait for it."""
    job = run(jobs, *way, "python", script(tmp_path, CLEARS))
    assert job.code not in (0, None), job.report()
    assert "[1]<stderr>:workbench.errors.LaunchError: init(): this process would train" in job.err(0), job.report()


@BOTH_WAYS
def test_a_world_of_one_may_be_alone(jobs: Runner, tmp_path: Path, way: list[str]) -> None:
    """With one rank nothing is lost, and a process that a rank starts for itself is no rank: no false alarm."""
    path = script(tmp_path, ADDS)
    job = run(jobs, *way, "env", "-i", f"PYTHONPATH={Path.cwd()}", sys.executable, path, n=1)
    assert (job.code, job.out(0).split(":")[-1].strip()) == (0, "1 1.0"), job.report()
    helper = HELPER.replace('"-i"', f'"-i", "PYTHONPATH={Path.cwd()}"')
    job = run(jobs, *way, "python", script(tmp_path, helper, "helper"), path)
    assert (job.code, job.out(0).count("1 1.0")) == (0, 2), job.report()


@EVERY_WAY
def test_a_script_that_never_calls_init_is_told(jobs: Runner, tmp_path: Path, way: list[str]) -> None:
    """One line on stderr says that the ranks have not trained together."""
    path = script(tmp_path, "print('trained')")
    said = "this script has ended without init(): each of the 2 ranks has run it alone"
    job = run(jobs, *way, "python", path)
    assert (job.code, job.err(0).count(said), job.err(0).count("\n")) == (0, 1, 1), job.report()
    assert job.err(0).endswith("workbench run --as-horovod sets them\n"), job.report()


def test_who_is_not_told(jobs: Runner, tmp_path: Path) -> None:
    """A single rank, a program that is no Python, ranks that met over MPI or by init(), a script that starts others."""
    assert run(jobs, "python", script(tmp_path, "print()"), n=1).err(0) == ""
    assert run(jobs, "hostname").err(0) == ""
    by_mpi = "from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1)"
    words = f"[sys.executable, {script(tmp_path, ADDS, 'adds')!r}]"
    by_child = f"import subprocess, sys; subprocess.run({words}, check=True, close_fds=False)"
    for text in (by_mpi, by_child, ADDS):
        job = run(jobs, "python", script(tmp_path, text))
        assert (job.code, job.err(0)) == (0, ""), job.report()


def test_who_only_asks_mpi_is_told(jobs: Runner, tmp_path: Path) -> None:
    """For the number of ranks, as Lightning does: nothing was sent. With Lightning the line names its strategy."""
    asks = "from mpi4py import MPI; print(MPI.COMM_WORLD.Get_size() > 1)"
    job = run(jobs, "python", script(tmp_path, asks))
    assert (job.code, job.err(0).count("has ended without init()")) == (0, 1), job.report()
    (tmp_path / "lightning.py").write_text(f"def detect():\n    {asks}\n")
    job = run(jobs, "python", script(tmp_path, "import lightning; lightning.detect()"))
    assert job.err(0).endswith('Trainer(strategy="workbench", devices=1)\n'), job.report()


def test_a_script_that_is_not_there_has_not_trained_alone(jobs: Runner, tmp_path: Path) -> None:
    """Python's own error is all that is said."""
    job = run(jobs, "python", str(tmp_path / "missing.py"))
    assert job.code == 2, job.report()
    assert "No such file" in job.err(0), job.report()
    assert "init()" not in job.err(0), job.report()


TORCHRUN = ["python", "-m", "torch.distributed.run", "--nproc-per-node", "1"]
WORLD = """
import torch.distributed as dist
dist.init_process_group("gloo")
print(dist.get_world_size())
dist.destroy_process_group()
"""


@pytest.mark.thorough
@BOTH_WAYS
def test_torchrun_in_each_rank_is_told(jobs: Runner, tmp_path: Path, way: list[str]) -> None:
    """In a job of its own init() refuses to train alone, by Python's traceback and no other."""
    job = run(jobs, *way, *TORCHRUN, script(tmp_path, ADDS))
    assert job.code == 1, job.report()
    assert "LaunchError: init(): torchrun or accelerate launch" in job.err(0), job.report()
    assert "PMI" not in job.err(0) + job.err(1), job.report()


@pytest.mark.thorough
@BOTH_WAYS
def test_torchruns_of_one_job_are_told_from_jobs_of_their_own(jobs: Runner, tmp_path: Path, way: list[str]) -> None:
    """One line says that each torchrun has a job of its own; nothing, where they have one job together."""
    said = "workbench: each of the 2 ranks has started a job of its own"
    job = run(jobs, *way, *TORCHRUN, script(tmp_path, WORLD))
    assert (job.code, job.err(0).count(said)) == (0, 1), job.report()
    assert "ended without init()" not in job.err(0), job.report()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free.getsockname()[1]}"]
    job = run(jobs, *way, *TORCHRUN, "--nnodes", "2", *meeting, script(tmp_path, ADDS, "adds"))
    assert (job.code, job.out(0).count("2 2.0")) == (0, 2), job.report()
    assert said not in job.err(0), job.report()


def test_init_in_a_child_that_has_no_connection_to_mpiexec(jobs: Runner, tmp_path: Path) -> None:
    """An error that says so, where MPI would end the process; by itself a subprocess inherits no connection."""
    by_child = (
        f"import subprocess, sys; subprocess.run([sys.executable, {script(tmp_path, ADDS, 'adds')!r}], check=True)"
    )
    job = run(jobs, "--mpi", "python", script(tmp_path, by_child))
    assert job.code == 1, job.report()
    assert "LaunchError: init(): a rank has started this process without its connection" in job.err(0), job.report()


DDP = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
print(os.environ["LOCAL_RANK"], next(model.parameters()).grad.tolist())
dist.destroy_process_group()
"""


@BOTH_WAYS
def test_a_ddp_script_runs(warm_torch: None, jobs: Runner, tmp_path: Path, way: list[str]) -> None:
    """torch.distributed finds in torchrun's variables who and where the ranks are: the mean of gradients 0 and 1."""
    job = run(jobs, *way, sys.executable, script(tmp_path, DDP))
    assert (job.code, job.err(0)) == (0, ""), job.report()  # they have trained together
    assert sorted(job.out(0).split()) == sorted(
        ["[0]<stdout>:0", "[[0.5,", "0.5]]", "[1]<stdout>:1", "[[0.5,", "0.5]]"]
    )


SHOWS = """
import os
names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
print(*(os.environ.get(f"{head}_{name}", "-") for head in ("HOROVOD", "OMPI_COMM_WORLD") for name in names))
import numpy as np, workbench as hvd
hvd.init()
mine = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
assert mine == tuple(int(os.environ[f"HOROVOD_{name}"]) for name in names)
assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 2
"""


@pytest.mark.parametrize(
    ("way", "like"),
    [
        (MPI, ["--as-horovod"]),
        (ELASTIC, []),
        once_more(MPI, []),
        once_more(GLOO, []),
        once_more(GLOO, ["--as-horovod"]),
        once_more(ELASTIC, ["--as-horovod"]),
    ],
    ids=str,
)
def test_scripts_find_their_numbers(jobs: Runner, tmp_path: Path, way: list[str], like: list[str]) -> None:
    """Horovod's variables are there before init(), and right after it; Open MPI's with --as-horovod, and do no harm."""
    job = run(jobs, *way, *like, "python", script(tmp_path, SHOWS))
    assert job.code == 0, job.report()
    openmpi = like and "--min-np" not in way
    expected = [f"{rank} 2 {rank} 2 " + (f"{rank} 2 {rank} 2" if openmpi else "- - - -") for rank in range(2)]
    assert sorted(line.split(":", 1)[1] for line in job.out(0).splitlines()) == expected, job.report()


# Rank 1 is ended by SIGTERM as soon as it is about to print why it ends; rank 0 was ended before.
ALL_ARE_ENDED = """
import os, signal, sys, threading, time
import numpy as np, workbench as hvd
def end_when_lost():
    while not hasattr(sys, "last_value"):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)
hvd.init()
hvd.barrier()
if hvd.rank() == 0:
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_when_lost, daemon=True).start()
while True:
    hvd.allreduce(np.ones(10000))
"""


@BOTH_WAYS
def test_ranks_that_are_all_ended_do_not_blame_each_other(jobs: Runner, tmp_path: Path, way: list[str]) -> None:
    """As a batch system ends a job: SIGTERM to one rank after the other. No rank tells that it has lost one."""
    job = run(jobs, *way, "python", script(tmp_path, ALL_ARE_ENDED))
    assert job.code == 128 + signal.SIGTERM, job.report()
    assert "PeerLostError" not in job.err(0), job.report()
