"""The supervisor of one rank: it starts the rank's command and reports its exit code to the launcher.

::

    launcher ── mpiexec ─┬─ supervisor 0 ── the command
        ▲                └─ supervisor 1 ── the command   (without MPI the launcher starts the supervisors)
        └──── named pipes in the job's folder: each rank's output, and events

Why there is a supervisor between mpiexec and the command:

1. mpiexec kills all ranks as soon as one fails, before the others can report why. With supervisors it sees no
   failure: they end together, with exit code 0.
2. mpiexec's exit code is not the exit code of any one rank.
3. The launcher reads each rank's output from that rank's own pipe, so it knows whose line it is, and no line is cut.

The command runs in a session of its own. The launcher sends signals to the command, never to the supervisor.
This file is run by its path, not with ``-m``, and imports next to nothing: it starts in 10 ms (25 with ``subprocess``).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # this runs at the start of each rank
    from collections.abc import Mapping

# Set by mpiexec or by the launcher.
RANK_NAMES = ("WORKBENCH_WORKER", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK")
# Set by mpiexec, by the launcher or by Slurm. MPICH's rank is the local rank where all ranks are on one machine.
LOCAL_RANK_NAMES = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID", "PMI_RANK")
GPUS = "WORKBENCH_GPUS"  # by local rank, see start/gpus.py
CORES = "WORKBENCH_CORES"  # by rank, see start/binding.py
AS_HOROVOD = "WORKBENCH_AS_HOROVOD"  # Open MPI's variables are set, too: scripts look at them as they look at Horovod's
MEMBER = "WORKBENCH_MEMBER"  # the file in which the process of this rank that calls init() says so
# Who sets them: rank and number of ranks, in the job and on the host.
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPENMPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_HOROVOD = tuple(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
BECOME, AGENTS = "--become", "--agents"
EVENTS, LEAVE = "events", "leave"
ENDED = b"rank-has-ended"  # the name of a supervisor whose rank has ended
JOB = "job"  # a file in the job's folder: the ranks' command and environment
NOT_FOUND = 127
# SIGPIPE and SIGXFSZ, which this Python ignores and a program expects, and SIGTERM, which an elastic job's supervisors
# ignore. The module `signal` would take 5 of the 10 ms.
_IGNORED = (13, 25, 15)


def pipe_name(rank: int | str, stream: str) -> str:
    """The named pipe for a rank's ``stdout`` or ``stderr``."""
    return f"{rank}.{stream}"


def pinned(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of the rank's command. From the list of GPUs, if there is one, it gets its own GPU only.

    Of the list of cores it hears nothing: that is for :func:`bind`.

    Example:
        >>> pinned({"WORKBENCH_GPUS": "GPU-a;GPU-b", "MPI_LOCALRANKID": "1"})
        {'MPI_LOCALRANKID': '1', 'CUDA_VISIBLE_DEVICES': 'GPU-b'}
    """
    mine = {name: text for name, text in env.items() if name != CORES}
    if listed := mine.pop(GPUS, ""):
        local_rank = next((int(env[name]) for name in LOCAL_RANK_NAMES if env.get(name)), 0)
        mine["CUDA_VISIBLE_DEVICES"] = listed.split(";")[local_rank]
    return mine


def numbered(env: Mapping[str, str]) -> dict[str, str]:
    """Who the rank is, under the names by which scripts look for it, whatever started it.

    Example:
        >>> mine = numbered({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"})
        >>> mine["RANK"], mine["HOROVOD_SIZE"], mine["HOROVOD_CROSS_SIZE"]
        ('1', '2', '1')
    """
    said = next((names for names in (_TORCHRUN, _OPENMPI, _MPICH) if all(map(env.get, names))), ())
    numbers = [env[name] for name in said]
    mine = dict(zip(_TORCHRUN, numbers, strict=False)) | dict(zip(_HOROVOD, numbers, strict=False))
    if numbers and numbers[1] == numbers[3]:  # all ranks are here
        mine = {"HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"} | mine
    if env.get(AS_HOROVOD):
        mine |= dict(zip(_OPENMPI, numbers, strict=False))
    return mine


def bind(listed: str, rank: int) -> None:
    """Bind this process, and those that it starts, to the cores of its rank.

    A process that may not use all the cores of the list has been bound by mpiexec, which stays as it is.

    Args:
        listed: cores by rank, such as ``0,1;2,3``.
        rank: this process's.
    """
    shares = [{int(core) for core in share.split(",") if core} for share in listed.split(";")]
    try:
        if listed and os.sched_getaffinity(0) == set().union(*shares):
            os.sched_setaffinity(0, shares[rank])
    except OSError:
        pass  # the launcher has tried it; what it cannot know is no reason to end


def folder_on_host(base: str, rank: int, firsts: str) -> str:
    """The job's folder on a rank's host. The hosts may share the folder that it is in.

    Example:
        >>> folder_on_host("/tmp/job", 3, "0,2,4")
        '/tmp/job.2'
    """
    return f"{base}.{max(first for first in map(int, firsts.split(',')) if first <= rank)}"


def supervise(folder: str, rank: str, command: list[str], env: Mapping[str, str]) -> None:
    """Run the command with its output in the rank's pipes; return when the launcher closes the pipe ``leave``."""
    events = open(f"{folder}/{EVENTS}", "wb", 0)  # noqa: SIM115 - it ends with this process
    leave = open(f"{folder}/{LEAVE}", "rb", 0)  # noqa: SIM115
    pid = _start(folder, rank, command, {**env, **numbered(env), MEMBER: f"{folder}/{rank}.member"})
    if pid:
        events.write(f"started {rank} {pid}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else NOT_FOUND
    _mark()
    events.write(f"ended {rank} {code}\n".encode())
    leave.read()  # nobody writes into it: it ends when the launcher closes it, or dies


def _mark() -> None:
    """Show in the list of processes, where other ranks look for this one's, that it has ended."""
    try:
        with open("/proc/self/comm", "wb", 0) as name:
            name.write(ENDED)
    except OSError:
        pass  # not Linux


def _start(folder: str, rank: str, command: list[str], env: Mapping[str, str]) -> int:
    """The command's process id, or 0. It inherits the files that mpiexec has left for the rank, none opened here."""
    out, err = (f"{folder}/{pipe_name(rank, stream)}" for stream in ("stdout", "stderr"))
    with open(out, "wb", 0) as stdout, open(err, "wb", 0) as stderr:
        try:
            return os.posix_spawnp(
                command[0],
                command,
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, stdout.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, stderr.fileno(), 2),
                ],
                setsid=True,
                setsigdef=_IGNORED,
            )
        except OSError as error:
            stderr.write(f"workbench: {command[0]} cannot be run: {error.strerror}\n".encode())
            return 0


def main(words: list[str], env: Mapping[str, str]) -> None:
    """``supervisor.py <the job's folder> <command>…``, or one of two other forms.

    1. ``supervisor.py <what all hosts' folders begin with> --agents <each host's first rank>``: the command and the
       environment are in a file in this host's folder.
    2. ``supervisor.py --become <command>…`` becomes the rank's command, with its cores and its GPU, and supervises
       nothing.
    """
    where, *command = words
    if command[0] == AGENTS:  # MPI has started this on one of several hosts: its agent has left there what to do
        where = folder_on_host(where, int(next(env[name] for name in RANK_NAMES if name in env)), command[1])
        with open(f"{where}/{JOB}", "rb") as file:
            command, theirs = marshal.load(file)
        env = {**env, **theirs}
    rank = next(env[name] for name in RANK_NAMES if name in env)
    bind(env.get(CORES, ""), int(rank))
    if where == BECOME:
        os.execvpe(command[0], command, pinned(env))
    if RANK_NAMES[0] in env:  # a batch system tells all processes; the rank leaves by itself, and this follows
        _signal.signal(15, _signal.SIG_IGN)
    try:  # noqa: SIM105 - contextlib would take a third of the start
        supervise(where, rank, command, pinned(env))
    except OSError:
        pass  # the launcher is gone; its watchdog kills the rest


if __name__ == "__main__":
    main(sys.argv[1:], dict(os.environ))
