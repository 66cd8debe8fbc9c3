"""The two ways to start the ranks of a job on this machine: with mpiexec, or one by one as torchrun does."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import workbench.errors
from workbench import config
from workbench.errors import LaunchError
from workbench.launch import mpi, rank

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Below what systems hand out by themselves, so that nobody else gets the port between now and rank 0's listening.
_PORTS = range(20000, 32000)

FOLDER = "{folder}"
"""A word of a task's command that stands for the folder with its files."""
FILES = "files"
"""The name of that folder, within the job's."""


@dataclass(frozen=True)
class Task:
    """What is to be started.

    Args:
        n: how many ranks.
        command: each rank's. The word :data:`FOLDER` becomes the folder with ``files``.
        env: each rank's whole environment, see :func:`environment`.
        way: ``mpi``, ``gloo`` for plain processes, or ``auto``: MPI where it works.
        hosts: names and slots; all of them are this machine. MPICH takes several for several hosts.
        mpi_args: further words for mpiexec.
        start_timeout_s: deadline until all ranks run.
        timeout_s: deadline of the whole job; None for none.
        files: what the ranks find in that folder, by name; what is there at the end is in the outcome.
    """

    n: int
    command: Sequence[str]
    env: Mapping[str, str]
    way: str = "auto"
    hosts: Sequence[tuple[str, int]] = ()
    mpi_args: Sequence[str] = ()
    start_timeout_s: float = 30.0
    timeout_s: float | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Process:
    """A process that the launcher starts itself: mpiexec, or one rank's keeper."""

    name: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)


def choose(use_mpi: bool | None, use_gloo: bool | None, env: Mapping[str, str]) -> str:
    """The way that was asked for, by options or by the variables that choose a backend.

    Raises:
        LaunchError: both ways were.
    """
    chosen = config.settings(env).backend
    wanted = {"mpi"} if use_mpi else set[str]()
    wanted |= {"gloo"} if use_gloo else set()
    wanted |= {chosen} - {"auto"}
    if len(wanted) > 1:
        raise LaunchError(
            "MPI and Gloo exclude each other: ask for one of them, by an option or with WORKBENCH_BACKEND or "
            f"HOROVOD_CPU_OPERATIONS (now: {chosen})."
        )
    return wanted.pop() if wanted else "auto"


def processes(task: Task, folder: Path, say: Callable[[str], None]) -> list[Process]:
    """What to start for a task.

    Args:
        job: the task.
        folder: where the keepers find their named pipes.
        say: told why it is not MPI.

    Raises:
        LaunchError: the task insists on MPI, and there is no mpiexec that fits.
    """
    command = [str(folder / FILES) if word == FOLDER else word for word in task.command]
    keeper = [sys.executable, "-I", "-S", rank.__file__, str(folder), *command]
    if task.way != "gloo":
        try:
            return [Process("mpiexec", [*_mpiexec(task), *keeper])]
        except LaunchError as error:
            if task.way == "mpi":
                raise
            say(f"No MPI ({error}) So the ranks are plain processes, and talk over Gloo.")
    port = str(free_port())
    return [Process(f"rank {i}", keeper, _meeting(i, task.n, port)) for i in range(task.n)]


def _mpiexec(task: Task) -> list[str]:
    words = mpi.command(task.n)
    if mpi.mpiexec_vendor(words[0]) == "MPICH":  # within a batch job it would start ranks on all of the job's nodes
        hosts = task.hosts or [("localhost", task.n)]
        words += ["-launcher", "fork", "-hosts", ",".join(f"{name}:{slots}" for name, slots in hosts)]
    return [*words, *task.mpi_args]


def _meeting(i: int, n: int, port: str) -> dict[str, str]:
    """Torchrun's variables, and those of Horovod that scripts read."""
    torchrun = {"RANK": i, "WORLD_SIZE": n, "LOCAL_RANK": i, "LOCAL_WORLD_SIZE": n}
    horovod = {"RANK": i, "SIZE": n, "LOCAL_RANK": i, "LOCAL_SIZE": n, "CROSS_RANK": 0, "CROSS_SIZE": 1}
    return {
        **{name: str(number) for name, number in torchrun.items()},
        **{f"HOROVOD_{name}": str(number) for name, number in horovod.items()},
        **dict.fromkeys(("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"), "gloo"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def free_port() -> int:
    """A port on which nobody listens, and which nobody gets by chance.

    Raises:
        LaunchError: a hundred ports were all taken.
    """
    for port in random.sample(_PORTS, 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise LaunchError(f"A hundred ports between {_PORTS.start} and {_PORTS.stop} are all taken.")


def environment(n: int, as_horovod: bool = False, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of each of ``n`` ranks: this process's, with what a rank needs.

    1. ``workbench`` can be imported, and with ``as_horovod`` it is what ``import horovod`` finds.
    2. Threads share the cores, unless OMP_NUM_THREADS says otherwise.
    3. ``python`` is the Python that runs this, unless its environment is activated anyway.
    4. What a rank prints comes at once.
    5. What another launcher said to this process is left out.

    Args:
        n: how many ranks.
        as_horovod: see above.
        env: further variables, which win.
    """
    mine = dict(os.environ) | dict(env or {})
    chosen = {name: text for name, text in mine.items() if name in _THREADS}
    found = {**mpi.environment(mpi.threads_per_rank(n)), **(env or {})}
    if "OMP_NUM_THREADS" in chosen:
        found = {name: text for name, text in found.items() if name not in _THREADS}
    home = Path(workbench.errors.__file__).resolve().parent
    if as_horovod:
        found["PYTHONPATH"] = _before(str(home / "as_horovod" / "on_path"), found.get("PYTHONPATH", ""))
    bin_folder = str(Path(sys.executable).parent)
    if bin_folder not in found.get("PATH", "").split(os.pathsep):
        found["PATH"] = _before(bin_folder, found.get("PATH", ""))
    return config.without_launcher({"PYTHONUNBUFFERED": "1", **found, **chosen})


def _before(folder: str, path: str) -> str:
    return os.pathsep.join(filter(None, (folder, path)))


def check_command(command: Sequence[str], env: Mapping[str, str]) -> None:
    """See to it that the first word is a program.

    Raises:
        LaunchError: it is not.
    """
    if not shutil.which(command[0], path=env.get("PATH")):
        raise LaunchError(f"There is no program {command[0]!r}.")


__all__ = ["FILES", "FOLDER", "Process", "Task", "check_command", "choose", "environment", "free_port", "processes"]
