"""A default group begins a job where there is none: under torchrun, in processes of mp.spawn, in the launcher's job."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(120)]

# Twice, for a job ends with its group; the second time all ranks are asked for another number of ranks.
SPAWNED = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, n, path):
    import workbench.torch
    for again in range(2):
        dist.init_process_group("workbench", init_method=f"file://{path}{again}", rank=rank, world_size=n)
        tensor = torch.full((3,), rank + 1.0)
        dist.all_reduce(tensor)
        print("sum", rank, tensor.tolist(), flush=True)
        dist.destroy_process_group()
        assert not workbench.is_initialized()

if __name__ == "__main__":
    mp.spawn(work, (2, sys.argv[1]), nprocs=2)
"""
STARTED = """
import torch
import torch.distributed as dist
import workbench.torch

dist.init_process_group("workbench")
tensor = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
print("sum", dist.get_rank(), tensor.tolist(), flush=True)
dist.destroy_process_group()
assert not workbench.is_initialized()
"""


def script(folder: Path, text: str) -> str:
    """The path of a script."""
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def test_processes_of_spawn(jobs: Runner, tmp_path: Path) -> None:
    """They meet at the store that the group was given, and can do so again."""
    job = jobs.python(script(tmp_path, SPAWNED), str(tmp_path / "store"), deadline_s=100)
    assert job.code == 0, job.report()
    assert [job.out(0).count(f"sum {rank} [3.0, 3.0, 3.0]") for rank in (0, 1)] == [2, 2], job.report()


@pytest.mark.parametrize("way", ["torchrun", "mpiexec"])
def test_a_launchers_job(jobs: Runner, tmp_path: Path, way: str) -> None:
    """With torchrun's variables, and with MPI's alone, where neither MASTER_ADDR nor RANK is set."""
    job = getattr(jobs, way)(2, script(tmp_path, STARTED), deadline_s=100)
    assert job.code == 0, job.report()
    assert [f"sum {rank} [3.0, 3.0, 3.0]" in job.out(rank) for rank in (0, 1)] == [True, True], job.report()


# torch's "fake" does nothing, for tensors on any device: what it is given never reaches us.
KINDS = """
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg

dist.init_process_group("meta:fake,cpu:workbench")
pair = dist.new_group([0, 1])
rank = dist.get_rank()
elsewhere = torch.ones(3, device="meta")
for group in (dist.group.WORLD, pair):
    assert group.others["meta"].size() == 2
    dist.all_reduce(elsewhere, group=group)
    dist.all_gather_into_tensor(torch.ones(6, device="meta"), elsewhere, group=group)
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [3, 3, 3]
    for at in (elsewhere, tensor):
        messages = [dist.P2POp(dist.isend, at, 1 - rank, group), dist.P2POp(dist.irecv, at + 0, 1 - rank, group)]
        assert messages[0].group is group
        assert all(work.wait() for work in dist.batch_isend_irecv(messages) if work)
dist.destroy_process_group(pair)
assert len(dist.distributed_c10d._world.pg_map) == 2  # the default group, and the one beside it
try:
    dist.new_group([0, 1], backend="cpu:gloo,meta:workbench")
except ValueError as error:
    print("told", error, flush=True)
try:
    dist.all_reduce(elsewhere, group=dist.new_group([0, 1], backend="workbench"))
except TypeError as error:
    print("told", error, flush=True)
dist.destroy_process_group()
"""


def test_each_kind_of_device_may_have_its_backend(jobs: Runner, tmp_path: Path) -> None:
    """Tensors on the CPU are ours; others go to their backend, or to an error."""
    words = ("-m", "workbench.cli.main", "run", "-np", "2", sys.executable, script(tmp_path, KINDS))
    job = jobs.python(*words, deadline_s=100)
    assert job.code == 0, job.report()
    assert job.out(0).count("backend workbench takes tensors on the CPU, and meta is asked for") == 2, job.report()
    assert job.out(0).count("allreduce: a tensor is on meta, and the backend workbench takes those on") == 2


# As it is written for torch alone.
PLAIN = """
import torch
import torch.distributed as dist
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

init_process_group("nccl")
assert dist.get_backend() == "nccl"
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 1))
half = dist.new_group([0], backend="gloo")
for step in range(3 - dist.get_rank()):
    model(torch.ones(2, 3)).sum().backward()
"""


def test_a_script_for_ddp_runs_unchanged(jobs: Runner, tmp_path: Path) -> None:
    """Of ``--as-ddp`` it knows nothing: rank 1 has a step less, and rank 0 is told so at once."""
    words = ("-m", "workbench.cli.main", "run", "-np", "2", "--as-ddp", sys.executable, script(tmp_path, PLAIN))
    job = jobs.python(*words, deadline_s=100)
    assert job.code == 1
    said = job.out(0) + job.err(0)
    assert re.search(r"Rank 1 has left the job \(its script ended.*'allreduce\.0\..*can never complete", said), said


def test_numbers_that_are_not_the_jobs(jobs: Runner, tmp_path: Path) -> None:
    """The text says both."""
    text = STARTED.replace('"workbench")', '"workbench", store=dist.HashStore(), rank=0, world_size=3)').replace(
        "import workbench.torch", "import workbench.torch\n\nworkbench.torch.init()"
    )
    job = jobs.python(script(tmp_path, text), deadline_s=100)
    assert job.code == 1
    assert "init_process_group(rank=0, world_size=3): this process is rank 0 of 1 in the job" in job.err(0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "no launcher has started this process.*workbench run"),
        (
            ", timeout=timedelta(seconds=0.5), init_method='file://' + __file__ + '.store', rank=0, world_size=2",
            "not all 2 ranks came within 0.5 s .*: rank 1 did not come to the store of init_process_group",
        ),
    ],
)
def test_a_process_that_is_alone(jobs: Runner, tmp_path: Path, given: str, told: str) -> None:
    """It is told how to start; and after its own timeout who did not come."""
    imports = "from datetime import timedelta\nimport torch.distributed as dist\n"
    text = imports + f'dist.init_process_group("workbench"{given})'
    job = jobs.python(script(tmp_path, text), deadline_s=50)
    assert job.code == 1
    assert re.search(told, job.err(0)), job.err(0)


def test_checkpoints(jobs: Runner, tmp_path: Path) -> None:
    """torch's own, of weights and moments: of 4 ranks, also by a thread; 2 and 3 go on as the serial run does."""
    file = str(Path(__file__).with_name("checkpoints.py"))
    words = ("-m", "workbench.cli.main", "run", "-np", "4", sys.executable, file, str(tmp_path))
    job = jobs.python(*words, deadline_s=110)
    assert job.code == 0, job.report()
    assert job.out(0).count("all equal") == 4, job.report()
