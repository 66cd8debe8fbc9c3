"""Slurm: the hosts of the job around this process.

``workbench run`` without ``-H`` takes all hosts of the job around it. Slurm itself starts an agent on each, with srun,
so there is no ssh, the GPUs are those that Slurm has given, and everything ends with the job.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from workbench import config
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.launch.ranks.supervisor import GPUS
from workbench.launch.start.hosts import Hosts, is_here

_TIMEOUT_S = 30.0


def slots_here(n: int | None, env: Mapping[str, str] | None = None) -> int:
    """How many ranks this machine takes where it is the only host of the Slurm job around this process; else 0.

    Nobody is asked: Slurm's commands may be missing in a container.
    """
    parts = config.batch_parts(env)
    if [part.nodes for part in parts] != [1] or not is_here(parts[0].names):
        return 0
    return max(n or 0, *tasks_per_node(parts[0].tasks, 1))


def allocation(n: int | None, env: Mapping[str, str] | None = None) -> list[Hosts]:
    """The hosts of the Slurm job around this process and how many ranks each takes, by component; none outside of one.

    A heterogeneous job has several components, any other job one. Where the job does not say how many tasks each host
    takes, or ``n`` are more than that, the ranks are spread evenly.

    Raises:
        LaunchError: Slurm does not answer.
    """
    found = []
    for part in config.batch_parts(env):
        hosts = ask(["scontrol", "show", "hostnames", part.names]).split()
        found.append(list(zip(hosts, tasks_per_node(part.tasks, len(hosts)), strict=True)))
    listed = [host for part in found for host in part]
    if listed and n is not None and n > sum(slots for _, slots in listed):
        each = -(-n // len(listed))
        found = [[(name, each) for name, _ in part] for part in found]
    return found


def tasks_per_node(text: str, nodes: int) -> list[int]:
    """What Slurm means by ``SLURM_TASKS_PER_NODE``; one task each where it says nothing.

    Example:
        >>> tasks_per_node("2(x2),1", 3), tasks_per_node("", 2)
        ([2, 2, 1], [1, 1])
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            found += [int(match[1])] * int(match[2] or 1)
    return found if len(found) == nodes else [1] * nodes


@dataclass(frozen=True)
class JobGpus:
    """The GPUs of a Slurm job.

    Args:
        hosts: by host, how many it has; empty for a job without any.
        per_task: so many has each task of its own; 0: a host's tasks see all of them.
        tasks_per_gpu: … and so many tasks have them together.
    """

    hosts: Mapping[str, int] = field(default_factory=dict)
    per_task: int = 0
    tasks_per_gpu: int = 1

    def deal(self, ranks: int, visible: Sequence[str]) -> list[str]:
        """By local rank the GPUs that it sees, as in CUDA_VISIBLE_DEVICES; nothing where each sees all of them.

        Args:
            ranks: how many there are on this host.
            visible: numbers or uuids of the host's GPUs, in their order; empty where nobody has said them.

        Raises:
            LaunchError: a rank would have fewer than its own.

        Example:
            >>> JobGpus({"a": 4}, per_task=2).deal(2, ["0", "1", "2", "3"])
            ['0,1', '2,3']
        """
        if visible and len(visible) < self._needed(ranks):
            raise LaunchError(
                f"CUDA_VISIBLE_DEVICES={','.join(visible)} shows {count(len(visible), 'GPU')} to "
                f"{count(ranks, 'rank')} of this host, which need {self._needed(ranks)}. In a Slurm job only Slurm "
                "should set it."
            )
        firsts = [rank // self.tasks_per_gpu * self.per_task for rank in range(ranks)]
        return [",".join(visible[first : first + self.per_task]) for first in firsts] if self.per_task else []

    def check(self, ranks: Mapping[str, int]) -> None:
        """See to it that each rank has its GPUs.

        Args:
            ranks: by host, how many there are.

        Raises:
            LaunchError: a rank would have none, or share one though nobody has said so; it names each host.
        """
        short = []
        for host, n in ranks.items() if self.hosts else ():
            needed = self._needed(n) or n
            if (given := self.hosts.get(host, 0)) < needed:
                short.append(f"{host} has {count(given, 'GPU')} for {count(n, 'rank')}, which need {needed}")
        if short:
            raise LaunchError(
                f"In this Slurm job {'; '.join(short)}. Ask Slurm for as many on each host, --gpus-per-node, or start "
                "fewer ranks. To let ranks share a GPU: workbench run --gpus auto; to let each see all GPUs of its "
                "host: --gpus all."
            )

    def _needed(self, ranks: int) -> int:
        return -(-ranks // self.tasks_per_gpu) * self.per_task


def job_gpus(number: str) -> JobGpus:
    """The GPUs that Slurm has given to a job, whatever words asked for them.

    Raises:
        LaunchError: Slurm does not answer.
    """
    said = ask(["scontrol", "show", "job", "-d", number])
    hosts: dict[str, int] = {}
    for names, resources in re.findall(r"^\s+Nodes=(\S+) .*\bGRES=(\S*)", said, re.MULTILINE):
        found = gpu_count(resources)
        for host in ask(["scontrol", "show", "hostnames", names]).split():
            hosts[host] = hosts.get(host, 0) + found
    return replace(rule(said), hosts=hosts) if any(hosts.values()) else JobGpus()


def rule(said: str) -> JobGpus:
    """How a job's GPUs are dealt out to the tasks of a host: by --gpus-per-task, --ntasks-per-gpu or --gpu-bind.

    Args:
        said: by ``scontrol show job``.

    Example:
        >>> rule("TresPerTask=gres:gpu:a100:2"), rule("TresBind=gpu:single:2").tasks_per_gpu
        (JobGpus(hosts={}, per_task=2, tasks_per_gpu=1), 2)
    """
    if per_task := re.search(r"\bTresPerTask=(\S+)", said):
        return JobGpus(per_task=gpu_count(per_task[1]))
    if per_task := re.search(r"\bTresBind=gpu:(?:verbose,)?per_task:(\d+)", said):
        return JobGpus(per_task=int(per_task[1]))
    together = re.search(r"\b(?:NtasksPerTRES=|TresBind=gpu:(?:verbose,)?single:)(\d+)", said)
    share = int(together[1]) if together else 0
    return JobGpus(per_task=min(1, share), tasks_per_gpu=share or 1)


def gpus_here() -> JobGpus:
    """Those that the Slurm job around this process has given to it, on this host; none where Slurm does not answer."""
    visible = [word for word in (config.visible_gpus() or "").split(",") if word]
    try:
        job = job_gpus(config.batch_job())
    except LaunchError:
        return JobGpus()
    return replace(job, hosts={socket.gethostname(): len(visible)}) if job.hosts else job


def gpu_count(resources: str) -> int:
    """How many GPUs Slurm's text names.

    Example:
        >>> gpu_count("gpu:a100:2(IDX:0-1),gpu:1g.5gb:1(IDX:2)"), gpu_count("gres/gpu=3"), gpu_count("cpu:2,gres:gpu")
        (3, 3, 1)
    """
    plain = re.sub(r"\([^)]*\)", "", resources)
    found = re.findall(r"(?:^|[,:/])gpu(?=$|[,:=])(?:[:=](?!\d+(?:,|$))[^,:=]+)?(?:[:=](\d+))?", plain)
    return sum(int(number or 1) for number in found)


def ask(command: list[str], missing: str = "") -> str:
    """What a command of Slurm's says.

    Args:
        command: its words.
        missing: where it fails with this text, nothing is returned.

    Raises:
        LaunchError: there is no such command, it fails otherwise, or it does not answer.
    """
    if not shutil.which(command[0]):
        raise LaunchError(f"There is no {command[0]} here. Slurm's commands are on its login nodes, and in its jobs.")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"Slurm did not answer {shlex.join(command)} within {_TIMEOUT_S:g} s.") from None
    if done.returncode and missing and missing in done.stderr:
        return ""
    if done.returncode:
        raise LaunchError(f"Slurm refuses {shlex.join(command)}: {done.stderr.strip()}")
    return done.stdout


def by_slurm(n: int, job: JobGpus) -> dict[str, str]:
    """What gives each of ``n`` ranks of this host the GPUs that Slurm was asked to give it.

    Args:
        n: how many ranks.
        job: the job's GPUs; this host's are in CUDA_VISIBLE_DEVICES.
    """
    dealt = job.deal(n, [word for word in (config.visible_gpus() or "").split(",") if word])
    return {GPUS: ";".join(dealt)} if any(dealt) else {}
