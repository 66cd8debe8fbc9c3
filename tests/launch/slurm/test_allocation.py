"""How the GPUs of a Slurm job reach the ranks: from the text of scontrol 22.05 to CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Target
from workbench.launch.hosts.host_plan import find_hosts
from workbench.launch.hosts.remote_shell import GPU_REQUESTS, LocalShell, Srun
from workbench.launch.ranks import supervisor
from workbench.launch.slurm.allocation import JobGpus, allocation, by_slurm, gpu_count, gpus_here, job_gpus

BOTH = "     Nodes=wb[1-2] CPU_IDs=0,2 Mem=0 GRES={}\n"
A100, MIXED = "gpu:a100:2(IDX:0-1)", "gpu:a100:2(IDX:0-1),gpu:1g.5gb:1(IDX:2)"
TWO_AND_NONE = "gpu:a100:2(IDX:0-1),gpu:1g.5gb:0(IDX:)"
UNEVEN = (
    "     Nodes=wb1 CPU_IDs=0,2 Mem=0 GRES=gpu:a100:2(IDX:0-1),gpu:1g.5gb:1(IDX:2)\n"
    "     Nodes=wb2 CPU_IDs=0,2 Mem=0 GRES=gpu:a100:1(IDX:0),gpu:1g.5gb:0(IDX:)\n"
)
# What a user asks salloc for → scontrol's lines on it → GPUs of wb1 and wb2, of a task, and tasks that share them.
JOBS = {
    "--gpus=4": (UNEVEN + "   TresPerJob=gres:gpu:4", (3, 1, 0, 1)),
    "--gpus=a100:4": (BOTH.format(A100) + "   TresPerJob=gres:gpu:a100:4", (2, 2, 0, 1)),
    "--gpus-per-node=2": (BOTH.format(TWO_AND_NONE) + "   TresPerNode=gres:gpu:2", (2, 2, 0, 1)),
    "--gpus-per-node=a100:2,1g.5gb:1": (
        BOTH.format(MIXED) + "   TresPerNode=gres:gpu:a100:2,gres:gpu:1g.5gb:1",
        (3, 3, 0, 1),
    ),
    "--gpus-per-socket=1": (BOTH.format(TWO_AND_NONE) + "   TresPerSocket=gres:gpu:1", (2, 2, 0, 1)),
    "--gpus-per-task=1": (BOTH.format(TWO_AND_NONE) + "   TresPerTask=gres:gpu:1", (2, 2, 1, 1)),
    "--gpus-per-task=a100:1": (BOTH.format(A100) + "   TresPerTask=gres:gpu:a100:1", (2, 2, 1, 1)),
    "--gpus-per-task=1g.5gb:1": (
        BOTH.format("gpu:1g.5gb:2(IDX:2-3)") + "   TresPerTask=gres:gpu:1g.5gb:1",
        (2, 2, 1, 1),
    ),
    "--gpus-per-task=1 --gpus=4": (
        BOTH.format(A100) + "   TresPerJob=gres:gpu:4\n   TresPerTask=gres:gpu:1",
        (2, 2, 1, 1),
    ),
    "--gres=gpu": (BOTH.format("gpu:1(IDX:0)") + "   TresPerNode=gres:gpu", (1, 1, 0, 1)),
    "--gres=gpu:2": (BOTH.format("gpu:2(IDX:0,3)") + "   TresPerNode=gres:gpu:2", (2, 2, 0, 1)),
    "--gres=gpu:a100:2": (BOTH.format(A100) + "   TresPerNode=gres:gpu:a100:2", (2, 2, 0, 1)),
    "--gres=gpu:1g.5gb:1": (BOTH.format("gpu:1g.5gb:1(IDX:2)") + "   TresPerNode=gres:gpu:1g.5gb:1", (1, 1, 0, 1)),
    "--gres=gpu:2 --gpus-per-task=1": (
        BOTH.format(A100) + "   TresPerNode=gres:gpu:2\n   TresPerTask=gres:gpu:1",
        (2, 2, 1, 1),
    ),
    "--gres=craynetwork:1,gpu:2": (BOTH.format("craynetwork:1,gpu:2(IDX:0-1)"), (2, 2, 0, 1)),
    "--ntasks-per-gpu=2 --gpus=2": (
        BOTH.format("gpu:a100:1(IDX:0)") + "   TresPerJob=gres:gpu:2\n   NtasksPerTRES=2",
        (1, 1, 1, 2),
    ),
    "--gpus-per-node=2 --gpu-bind=single:1": (
        BOTH.format(A100) + "   TresBind=gpu:single:1\n   TresPerNode=gres:gpu:2",
        (2, 2, 1, 1),
    ),
    "--gpus-per-node=2 --gpu-bind=verbose,per_task:2": (
        BOTH.format(A100) + "   TresBind=gpu:verbose,per_task:2\n   TresPerNode=gres:gpu:2",
        (2, 2, 2, 1),
    ),
    "--gpus-per-node=2 --gpu-bind=closest": (BOTH.format(A100) + "   TresBind=gpu:closest", (2, 2, 0, 1)),
}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol, first on PATH, that shows the job in the file ``job`` beside it, and knows two hosts."""
    program = tmp_path / "scontrol"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in\n"show job -d 7") cat {tmp_path}/job;;\n'
        '"show hostnames wb[1-2]") printf "wb1\\nwb2\\n";;\n"show hostnames "*) echo "$3";;\nesac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return tmp_path / "job"


@pytest.mark.parametrize(("said", "right"), JOBS.values(), ids=JOBS)
def test_a_jobs_gpus_however_they_were_asked_for(said: str, right: tuple[int, int, int, int], scontrol: Path) -> None:
    """How many each host has, of any type, and how they are dealt out; the agent's step gets those of its host."""
    scontrol.write_text(f"JobId=7 JobName=x\n   TRES=cpu=4,node=2,billing=4\n   JOB_GRES=gpu:a100:9\n{said}\n")
    first, second, per_task, together = right
    job = job_gpus("7")
    assert job == JobGpus({"wb1": first, "wb2": second}, per_task, together)
    for host, n in (("wb1", first), ("wb2", second)):
        words = Srun(gpus=job).command(host, "true")
        assert f"--gpus={n}" in words[words.index("srun") :]
        assert words[: words.index("srun")] == ["env", *(word for name in GPU_REQUESTS for word in ("-u", name))]


def test_a_job_and_a_host_without_any(scontrol: Path) -> None:
    """Nothing is asked for where the job has none; a host that has none beside one that has some asks for none."""
    scontrol.write_text("JobId=7\n   JOB_GRES=(null)\n" + BOTH.format(""))
    assert job_gpus("7") == JobGpus()
    assert not any("gpu" in word or "gres" in word for word in Srun(gpus=JobGpus()).command("wb1", "true"))
    assert "--gres=none" in Srun(gpus=JobGpus({"wb1": 2})).command("wb2", "true")


def test_the_hosts_of_a_job(scontrol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each component has its own, with its tasks; ranks beyond them are spread evenly; srun is told the component."""
    scontrol.write_text("JobId=7\n")
    het = {"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "wb[1-2]", "SLURM_JOB_NODELIST_HET_GROUP_1": "c1"}
    tasks = {"SLURM_TASKS_PER_NODE_HET_GROUP_0": "2(x2)", "SLURM_TASKS_PER_NODE_HET_GROUP_1": "1"}
    assert allocation(None, het | tasks) == [[("wb1", 2), ("wb2", 2)], [("c1", 1)]]
    assert allocation(2, {}) == []
    assert allocation(6, het) == [[("wb1", 2), ("wb2", 2)], [("c1", 2)]]
    for name, text in (het | tasks).items():
        monkeypatch.setenv(name, text)
    targets = find_hosts("", "", None)
    assert [(target.name, target.slots) for target in targets] == [("wb1", 2), ("wb2", 2), ("c1", 1)]
    commands = [target.shell.command(target.name, "true") for target in targets]
    assert [word for words in commands for word in words if "het" in word] == [f"--het-group={i}" for i in (0, 0, 1)]


@pytest.mark.parametrize(("n", "tasks", "slots"), [(None, "3", 3), (5, "3", 5), (2, "3", 3), (None, "", 1)])
def test_a_job_of_this_machine_alone(n: int | None, tasks: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks are the ranks, without an agent and without a command of Slurm's; another machine needs srun."""
    monkeypatch.setenv("PATH", "")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": socket.gethostname(), "SLURM_TASKS_PER_NODE": tasks}
    for name, text in job.items():
        monkeypatch.setenv(name, text)
    assert find_hosts("", "", n) == [Target("localhost", slots, LocalShell())]
    monkeypatch.setenv("SLURM_JOB_NODELIST", "c1")
    with pytest.raises(LaunchError, match=f"no scontrol.*-H localhost:{n or 1} starts all ranks here"):
        find_hosts("", "", n)


U, V = "GPU-8a1c2f0e-0000-1111-2222-333344445555", "GPU-77b20000-aaaa-bbbb-cccc-ddddeeeeffff"
M, N = "MIG-0aa1d1c3-5b3c-5a52-9b1f-0d6f1f2e3a4b", "MIG-GPU-8a1c2f0e-0000-1111-2222-333344445555/1/0"


@pytest.mark.parametrize("ids", [("0", "1", "2", "3"), ("3", "0", "2", "1"), (U, V, U[:8], V[:8]), (M, N, U, "1")])
@pytest.mark.parametrize(
    ("job", "right"),
    [
        (JobGpus({"wb1": 4}), dict.fromkeys(range(4))),
        (JobGpus({"wb1": 4}, per_task=1), {0: [0], 1: [1], 2: [2], 3: [3]}),
        (JobGpus({"wb1": 4}, per_task=2), {0: [0, 1], 1: [2, 3]}),
        (JobGpus({"wb1": 4}, per_task=1, tasks_per_gpu=2), {0: [0], 1: [0], 2: [1], 3: [1], 4: [2]}),
    ],
)
def test_each_rank_has_its_own_whatever_they_are_called(
    ids: tuple[str, ...], job: JobGpus, right: dict[int, list[int] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers, uuids and parts of a GPU go on by the names that Slurm gave them, in its order; the rest sees all."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(ids))
    env = by_slurm(len(right), job) | {"CUDA_VISIBLE_DEVICES": ",".join(ids)}
    for rank, mine in right.items():
        seen = supervisor.pinned(env | {"LOCAL_RANK": str(rank)})["CUDA_VISIBLE_DEVICES"]
        assert seen == ",".join(ids if mine is None else (ids[i] for i in mine))


def test_no_rank_sees_fewer_than_its_own(monkeypatch: pytest.MonkeyPatch, scontrol: Path) -> None:
    """Where the variable shows fewer than Slurm gave, a rank would see none: an error. Unset, it decides nothing."""
    job = JobGpus({"wb1": 2}, per_task=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", M)
    with pytest.raises(
        LaunchError, match=f"CUDA_VISIBLE_DEVICES={M} shows 1 GPU to 2 ranks of this host, which need 2"
    ):
        by_slurm(2, job)
    scontrol.write_text(JOBS["--gpus-per-task=1"][0] + "\n")
    assert by_slurm(1, gpus_here()) == {supervisor.GPUS: M}
    with pytest.raises(LaunchError, match="has 1 GPU for 2 ranks, which need 2"):
        gpus_here().check(dict.fromkeys(gpus_here().hosts, 2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert by_slurm(2, job) == {}


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("gres/gpu:a100=2", 2),
        ("cpu=2,gres/gpu=3", 3),
        ("gres:gpu:a100:1,gres:gpu:v100:2", 3),
        ("gpu:nvidia_a100_80gb_pcie_1g.10gb:7(IDX:0-6)", 7),
        ("gpu:2(S:0-1)", 2),
        ("gres:gpu", 1),
        ("gpu:1g.5gb", 1),
        ("gpu:tesla:0(IDX:N/A)", 0),
        ("(null)", 0),
        ("mps:100,shard:4,nic:2", 0),
        ("gpumem:40", 0),
    ],
)
def test_slurms_words_for_gpus(text: str, n: int) -> None:
    """With and without a type, in each of Slurm's spellings; what is no GPU does not count."""
    assert gpu_count(text) == n
