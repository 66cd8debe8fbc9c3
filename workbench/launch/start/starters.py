"""The two starters for the ranks of a job on this machine: mpiexec, or one process per rank as torchrun does."""

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
from workbench.launch.ranks import supervisor
from workbench.launch.start import mpi

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Below the ephemeral ports, so that no other process is given the port before rank 0 listens.
_PORTS = range(20000, 32000)

RENDEZVOUS_FILE = "rendezvous"
"""The rendezvous in the job's folder, for ranks without MPI."""


@dataclass(frozen=True)
class JobSpec:
    """What to start.

    Args:
        n: how many ranks.
        command: each rank's. The word :data:`workbench.launch.ranks.files.FOLDER` becomes the folder with ``files``.
        env: each rank's whole environment, see :func:`environment`.
        starter: ``mpi``; ``gloo`` for plain processes; or ``auto``: MPI where it works.
        mpi_args: further arguments of mpiexec.
        start_timeout_s: deadline until the first rank runs, and from each to the next.
        timeout_s: deadline of the whole job; None for none.
        files: by name, the contents of that folder at the start; its contents at the end are in the outcome.
    """

    n: int
    command: Sequence[str]
    env: Mapping[str, str]
    starter: str = "auto"
    mpi_args: Sequence[str] = ()
    start_timeout_s: float = 30.0
    timeout_s: float | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Where a worker runs: the ``slot``-th one of ``host``, and the ``index``-th of all slots of its machine.

    Args:
        number, total: the same among the slots of all hosts, and how many there are.
        beside: how many the host has.
    """

    host: str
    slot: int
    index: int = 0
    number: int = 0
    total: int = 1
    beside: int = 1


def choose(use_mpi: bool | None, use_gloo: bool | None, env: Mapping[str, str]) -> str:
    """The starter that was asked for, by options or by the variables that choose a backend.

    Raises:
        LaunchError: both starters were.

    Example:
        >>> choose(None, True, {"WORKBENCH_BACKEND": "shm"}), choose(None, None, {"WORKBENCH_BACKEND": "gloo"})
        ('gloo', 'gloo')
    """
    chosen = config.settings(env).backend
    wanted = {"mpi"} if use_mpi else set[str]()
    wanted |= {"gloo"} if use_gloo else set()
    wanted |= {chosen} & {"mpi", "gloo"}  # all others go with both
    if len(wanted) > 1:
        raise LaunchError(
            "MPI and Gloo exclude each other: ask for one of them, by an option or with WORKBENCH_BACKEND or "
            f"HOROVOD_CPU_OPERATIONS (now: {chosen})."
        )
    return wanted.pop() if wanted else "auto"


def mpiexec(task: JobSpec, log: Callable[[str], None]) -> list[str]:
    """The words with which MPI's launcher starts a task's ranks on this machine; none where they start one by one.

    Args:
        task: what to start.
        log: gets the reason for not using MPI.

    Raises:
        LaunchError: the task requires MPI, and no mpiexec matches mpi4py.
    """
    if task.starter == "gloo":
        return []
    try:
        return mpi.command(task.n, words=task.mpi_args)
    except LaunchError as error:
        if task.starter == "mpi":
            raise
        log(f"No MPI ({error}) So the ranks are plain processes, and communicate over shared memory and TCP.")
        return []


def torch_variables() -> dict[str, str]:
    """For scripts that use torch.distributed by themselves. The workbench does not listen there."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def idle_hosts(who: str) -> str:
    """A note about unused hosts, within a batch job of several hosts; else ""."""
    parts = config.batch_parts()
    n, names = sum(part.nodes for part in parts), ",".join(part.names for part in parts)
    return f"This batch job has {n} hosts ({names}), but {who} on this one, {socket.gethostname()}." if n > 1 else ""


def rendezvous(task: JobSpec, folder: Path) -> dict[str, str]:
    """Where ranks without MPI meet: in the job's folder, which no other user can open."""
    import secrets  # hashlib and more, which ranks of MPI do without

    found = {"WORKBENCH_RENDEZVOUS_FILE": str(folder / RENDEZVOUS_FILE), "WORKBENCH_SECRET": secrets.token_hex(32)}
    names = ["HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"]
    return found | dict.fromkeys(names[: 2 if config.settings(task.env).backend in ("auto", "gloo") else 1], "gloo")


def launcher_variables(
    rank: int, size: int, local_rank: int, local_size: int, host: int = 0, hosts: int = 1
) -> dict[str, str]:
    """Torchrun's variables, and those of Horovod's that scripts read.

    Args:
        rank, size: of the job.
        local_rank, local_size: on the rank's host.
        host, hosts: the number of that host, among how many.
    """
    torchrun = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size}
    horovod = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    horovod |= {"CROSS_RANK": host, "CROSS_SIZE": hosts}
    return {
        **{name: str(number) for name, number in torchrun.items()},
        **{f"HOROVOD_{name}": str(number) for name, number in horovod.items()},
    }


def worker_variables(worker: int, placement: Placement) -> dict[str, str]:
    """What a worker is told about itself; its rank and the number of ranks it hears in ``init()``.

    Until then scripts find in Horovod's variables what is likely: that there is a rank for each slot.
    """
    return {
        "WORKBENCH_WORKER": str(worker),
        "LOCAL_RANK": str(placement.slot),  # by which scripts choose their GPU
        "HOROVOD_RANK": str(placement.number),
        "HOROVOD_SIZE": str(placement.total),
        "HOROVOD_LOCAL_RANK": str(placement.slot),
        "HOROVOD_LOCAL_SIZE": str(placement.beside),
        "HOROVOD_HOSTNAME": placement.host,
        "HOROVOD_ELASTIC": "1",
    }


def free_port() -> int:
    """A free port below the ephemeral ones.

    Raises:
        LaunchError: a hundred ports were all taken.
    """
    for port in random.sample(_PORTS, 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise LaunchError(f"A hundred ports between {_PORTS.start} and {_PORTS.stop} are all in use.")


def environment(n: int, as_horovod: bool = False, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of each of ``n`` ranks: this process's, with what a rank needs.

    1. ``workbench`` can be imported, and with ``as_horovod`` it is what ``import horovod`` finds, and
       Open MPI's variables say the rank as well, as they do where Open MPI starts Horovod.
    2. Threads share the cores, unless OMP_NUM_THREADS says otherwise.
    3. ``python`` is the Python that runs this, unless its environment is activated anyway.
    4. What a rank prints comes at once.
    5. What another launcher said to this process is left out.
    6. A script that raises ends, and does not wait in MPI_Finalize: see ``on_path/sitecustomize.py``.

    Args:
        n: how many ranks.
        as_horovod: see above.
        env: further variables, which win.
    """
    mine = dict(os.environ) | dict(env or {})
    chosen = {name: text for name, text in mine.items() if name in THREADS}
    found = {**mpi.environment(mpi.threads_per_rank(n)), **(env or {})}
    if "OMP_NUM_THREADS" in chosen:
        found = {name: text for name, text in found.items() if name not in THREADS}
    home = Path(workbench.errors.__file__).resolve().parent
    found["PYTHONPATH"] = _before(str(home / "launch" / "on_path"), found.get("PYTHONPATH", ""))
    if as_horovod:
        found["PYTHONPATH"] = _before(str(home / "as_horovod" / "on_path"), found.get("PYTHONPATH", ""))
    bin_folder = str(Path(sys.executable).parent)
    if bin_folder not in found.get("PATH", "").split(os.pathsep):
        found["PATH"] = _before(bin_folder, found.get("PATH", ""))
    found = config.without_launcher({"PYTHONUNBUFFERED": "1", **found, **chosen})
    return found | ({supervisor.AS_HOROVOD: "1"} if as_horovod else {})


def horovod_shell() -> dict[str, str]:
    """Variables with which ``horovodrun``, ``mpirun`` and ``import horovod`` in a shell mean the workbench's.

    ``eval "$(workbench env)"`` sets them, and so can a notebook for its ``!`` lines.

    Example:
        >>> sorted(horovod_shell())
        ['PATH', 'PYTHONPATH']
    """
    ours = str(Path(workbench.errors.__file__).resolve().parent / "as_horovod" / "on_path")
    found = mpi.environment(1)
    path = _before(ours, _before(str(Path(sys.executable).parent), found.get("PATH", "")))
    return {"PATH": path, "PYTHONPATH": _before(ours, found.get("PYTHONPATH", ""))}


def _before(folder: str, path: str) -> str:
    """The folder before the others of a path, and each once: a shell may be made ready twice."""
    return os.pathsep.join(dict.fromkeys([folder, *(path.split(os.pathsep) if path else ())]))


def check_command(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Check that the first word is a program, and that the timeline can be written.

    Raises:
        LaunchError: it is not, or it cannot.
    """
    if not shutil.which(command[0], path=env.get("PATH")):
        raise LaunchError(f"There is no program {command[0]!r}.")
    timeline = config.settings(env).timeline
    folder = Path(timeline).absolute().parent
    if timeline and timeline.lower() != "dynamic" and not (folder.is_dir() and os.access(folder, os.W_OK)):
        why = "may not be written to" if folder.is_dir() else "is not there"
        raise LaunchError(
            f"The timeline {timeline} cannot be written: the folder {folder} {why}. Make it, or name another."
        )
