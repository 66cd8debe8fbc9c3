"""Slurm: the hosts of the job around this process.

``workbench run`` without ``-H`` takes all hosts of the job around it. Slurm itself starts an agent on each, with srun,
so there is no ssh, the GPUs are those that Slurm has given, and everything ends with the job.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping

from workbench import config
from workbench.errors import LaunchError
from workbench.launch.start.hosts import Hosts

_TIMEOUT_S = 30.0


def allocation(n: int | None, env: Mapping[str, str] | None = None) -> Hosts:
    """The hosts of the Slurm job around this process and how many ranks each takes; none outside of one.

    A job of one host is none, too: its ranks need no agents. Where the job does not say how many tasks each host
    takes, or ``n`` are more than that, the ranks are spread evenly.

    Raises:
        LaunchError: Slurm does not answer.
    """
    count, names = config.batch_hosts(env)
    if count < 2 or not names:
        return []
    try:
        hosts = ask(["scontrol", "show", "hostnames", names]).split()
    except LaunchError as error:
        raise LaunchError(
            f"{error} This Slurm job has {count} hosts; -H localhost:{n or 1} starts all on this one."
        ) from None
    tasks = tasks_per_node(config.batch_tasks(env), len(hosts))
    if n is not None and n > sum(tasks):
        tasks = [-(-n // len(hosts))] * len(hosts)
    return list(zip(hosts, tasks, strict=True))


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


__all__ = ["allocation", "ask", "tasks_per_node"]
