"""Batch scripts for Slurm: write one, submit it, and follow the job: ``workbench slurm train.sbatch …``."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbench.errors import LaunchError
from workbench.launch.site import Site
from workbench.launch.slurm.allocation import ask

_CHUNK = 1 << 20
_LOOK_S = 0.5
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", ""}
"""States of a job that is over."""

# Reasons for which a job waits until an administrator changes something.
_NEVER = {"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"}
_NEVER |= {"InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed"}


@dataclass(frozen=True)
class Wanted:
    """What a batch script asks Slurm for.

    Args:
        nodes, tasks_per_node, gpus_per_task, cpus_per_task: per job, node, and rank; 0 CPUs: as Slurm has it.
        gpus_per_node: on each node; every rank there sees all of them. Better than ``gpus_per_task``, with which a rank
            sees its own alone: GPUs that do not see each other exchange nothing directly (P2P, CUDA IPC).
        time: its limit: ``30:00`` is half an hour; "": as Slurm has it.
        name: of the job.
        output: its file; ``%j`` is the job's number.
        options: further options of sbatch, such as ``--constraint=a100``.
    """

    nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_task: int = 0
    gpus_per_node: int = 0
    cpus_per_task: int = 0
    time: str = ""
    name: str = "workbench"
    output: str = "workbench-%j.out"
    options: Sequence[str] = ()


def script(wanted: Wanted, site: Site, activate: str, command: Sequence[str]) -> str:
    """The batch script.

    Args:
        wanted: what to ask for.
        site: the partition, account and reservation to ask in, and the modules to load.
        activate: the file that activates this Python's environment; "" for none.
        command: of each rank.

    Example:
        >>> print(script(Wanted(2, 2, gpus_per_node=2), Site(modules=("cuda",)), "", ["python", "train.py"]))
        #!/bin/bash -l
        #SBATCH --job-name=workbench
        #SBATCH --nodes=2
        #SBATCH --ntasks-per-node=2
        #SBATCH --gpus-per-node=2
        #SBATCH --output=workbench-%j.out
        <BLANKLINE>
        module load cuda
        <BLANKLINE>
        # The ranks go to all nodes of the job: as `srun`, with a rehearsal before.
        workbench run -np 4 python train.py
        <BLANKLINE>
    """
    lines = ["#!/bin/bash -l", *(f"#SBATCH {option}" for option in options(wanted, site))]
    set_up = [f"module load {shlex.join(site.modules)}"] if site.modules else []
    set_up += [f"source {shlex.quote(activate)}"] if activate else []
    run = f"workbench run -np {wanted.nodes * wanted.tasks_per_node} {shlex.join(command)}"
    comment = "# The ranks go to all nodes of the job: as `srun`, with a rehearsal before."
    return "\n".join([*lines, "", *([*set_up, ""] if set_up else []), comment, run, ""])


def options(wanted: Wanted, site: Site) -> list[str]:
    """What is asked for, as options of sbatch.

    Example:
        >>> options(Wanted(nodes=2, time="30:00"), Site(partition="gpu"))[1:4]
        ['--nodes=2', '--ntasks-per-node=1', '--time=30:00']
    """
    asked = {
        "job-name": wanted.name,
        "nodes": wanted.nodes,
        "ntasks-per-node": wanted.tasks_per_node,
        "gpus-per-node": wanted.gpus_per_node,
        "gpus-per-task": wanted.gpus_per_task,
        "cpus-per-task": wanted.cpus_per_task,
        "time": wanted.time,
        "partition": site.partition,
        "account": site.account,
        "reservation": site.reservation,
        "output": wanted.output,
    }
    found = [*(f"--{name}={value}" for name, value in asked.items() if value), *wanted.options]
    if split := [each for each in found if len(each.splitlines()) > 1]:  # the rest would be a command of the script
        raise LaunchError(f"{split[0]!r} has more than one line, and an option of sbatch is one.")
    return found


def submit(words: Sequence[str], log: Callable[[str], None]) -> str:
    """Hand a job to Slurm; returns its number.

    Args:
        words: what sbatch is told: the name of a script, for one.
        log: gets the number, and how to end the job.

    Raises:
        LaunchError: Slurm refuses it, with Slurm's reason.
    """
    number = ask(["sbatch", "--parsable", *words]).strip().partition(";")[0]
    log(f"job {number} is submitted; scancel {number} ends it")
    return number


def follow(number: str, log: Callable[[str], None], write: Callable[[str], object]) -> str:
    """Say how a job waits, and write what it writes, until it has ended.

    Args:
        number: the job's.
        log: gets its state when that changes, and why it waits.
        write: gets what it writes.

    Returns:
        The state in which it ended, as Slurm names it.

    Raises:
        LaunchError: Slurm does not answer, or has accepted a job that it can never start. That one is cancelled.
    """
    said, read, seen = "", dict[str, int](), dict[str, str]()
    while True:
        state, words = look(number, seen)
        if words != said and state:
            log(words)
            about = ask(["scontrol", "show", "job", number], missing="Invalid job id")
            read |= dict.fromkeys({*re.findall(r"StdOut=(\S+)", about)} - read.keys(), 0)  # of each of its tasks
        said = words
        for path, at in read.items():
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                file.seek(at)
                while text := file.read(_CHUNK):
                    write(text)
                read[path] = file.tell()
        if state in ENDED:
            return state or "COMPLETED"
        time.sleep(_LOOK_S)


def look(number: str, seen: dict[str, str] | None = None) -> tuple[str, str]:
    """A job's state as Slurm names it, "" for one that is gone; and in words, with why it waits.

    An array has several tasks and a heterogeneous job several components. They are over when all are; then the state is
    that of the first one that failed.

    Args:
        number: the job's.
        seen: by task, the state that it had before, for Slurm forgets tasks that have ended; it is updated.

    Raises:
        LaunchError: as :func:`follow`.
    """
    rows = _rows(number)
    seen = {} if seen is None else seen
    for task in seen.keys() - {row.task for row in rows}:
        seen[task] = seen[task] if seen[task] in ENDED else "COMPLETED"
    seen |= {row.task: row.state for row in rows}
    going = [state for state in seen.values() if state not in ENDED]
    # What runs comes before what waits; at the end, what failed before what did not.
    states = sorted(going, key="RUNNING".__ne__) or sorted(seen.values(), key="COMPLETED".__eq__) or [""]
    several = ", ".join(f"{n} {state.lower()}" for state, n in sorted(Counter(seen.values()).items()))
    words = f"job {number}: {several if len(seen) > 1 else states[0].lower() or 'gone'}"
    if waiting := next((row for row in rows if row.state == "PENDING"), None):
        place = _place(waiting)
        words += f", because of {waiting.reason}" if waiting.reason != "None" else ""
        words += f"; expected to start at {waiting.start}" if waiting.start != "N/A" else ""
        words += f"; {place} before it in its partition" if place else ""
    if never := next((row.reason for row in rows if row.state == "PENDING" and row.reason in _NEVER), ""):
        ask(["scancel", number])
        raise LaunchError(
            f"Job {number} was cancelled, because it would wait forever: {never}. Does the partition have so many "
            "nodes, tasks and GPUs, for so long, and may this account use it? sinfo shows the partitions."
        )
    return states[0], words


class _Row(NamedTuple):
    """What squeue says of a job, of a task of an array, or of a component."""

    task: str
    state: str
    reason: str
    priority: str
    start: str
    partition: str


def _rows(number: str) -> list[_Row]:
    command = ["squeue", "-h", "-r", "-t", "all", "-j", number, "-o", "%i|%T|%r|%Q|%S|%P"]
    return [_Row(*line.split("|")) for line in ask(command, missing="Invalid job id").splitlines() if line]


def _place(waiting: _Row) -> int:
    """How many jobs wait before it."""
    others = ask(["squeue", "-h", "-t", "PENDING", "-p", waiting.partition, "-o", "%Q %i"]).splitlines()
    return sum(int(other.split()[0]) > int(waiting.priority) for other in others)
