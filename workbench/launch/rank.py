"""The keeper of one rank: starts the rank's command, and tells the launcher how it ended.

::

    launcher ── mpiexec ─┬─ keeper 0 ── the command
        ▲                └─ keeper 1 ── the command       (without MPI the launcher starts the keepers itself)
        └──── named pipes in the job's folder: each rank's output, and events

Why there is a keeper between mpiexec and the command:

1. An mpiexec kills all ranks the moment that one fails, so none of them could still say why. It sees only
   keepers, and these succeed together at the end.
2. The exit code of an mpiexec is no rank's own.
3. The output of a rank goes straight to the launcher, so no line is cut, and none comes from nobody.

The command is started in a session of its own, and the launcher sends signals to it and to no keeper.
This file is run by its path, not with ``-m``, and needs the standard library only: it starts in 20 ms.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping

# As mpiexec's, or the launcher's own.
RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK")
# As mpiexec's, the launcher's own, or Slurm's. Where all ranks are on one machine, MPICH's rank is the local one, too.
LOCAL_RANK_NAMES = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID", "PMI_RANK")
GPUS = "WORKBENCH_GPUS"  # by local rank, see gpus.py
EVENTS, LEAVE = "events", "leave"
NOT_FOUND = 127


def pipe_name(rank: int | str, stream: str) -> str:
    """The named pipe for a rank's ``stdout`` or ``stderr``."""
    return f"{rank}.{stream}"


def pinned(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of the rank's command: of the list of GPUs, if there is one, it sees its own alone.

    Example:
        >>> pinned({"WORKBENCH_GPUS": "GPU-a,GPU-b", "MPI_LOCALRANKID": "1"})
        {'MPI_LOCALRANKID': '1', 'CUDA_VISIBLE_DEVICES': 'GPU-b'}
    """
    mine = dict(env)
    if listed := mine.pop(GPUS, ""):
        local_rank = next((int(env[name]) for name in LOCAL_RANK_NAMES if env.get(name)), 0)
        mine["CUDA_VISIBLE_DEVICES"] = listed.split(",")[local_rank]
    return mine


def keep(folder: str, rank: str, command: list[str], env: Mapping[str, str]) -> None:
    """Run the command with its output in the rank's pipes; return when the launcher lets go."""
    events = open(f"{folder}/{EVENTS}", "wb", 0)  # noqa: SIM115 - it ends with this process
    leave = open(f"{folder}/{LEAVE}", "rb", 0)  # noqa: SIM115
    process = _start(folder, rank, command, env)
    if process is not None:
        events.write(f"started {rank} {process.pid}\n".encode())
    code = NOT_FOUND if process is None else process.wait()
    events.write(f"ended {rank} {code}\n".encode())
    leave.read()  # nobody writes into it: it ends when the launcher closes it, or dies


def _start(folder: str, rank: str, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    out, err = (f"{folder}/{pipe_name(rank, stream)}" for stream in ("stdout", "stderr"))
    with open(out, "wb", 0) as stdout, open(err, "wb", 0) as stderr:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=env,
                close_fds=False,  # mpiexec has left some that the rank needs; those opened here are not inherited
                start_new_session=True,
            )
        except OSError as error:
            stderr.write(f"workbench: {command[0]} cannot be run: {error.strerror}\n".encode())
            return None


def main() -> None:
    """``python rank.py <the job's folder> <command>…``."""
    env = dict(os.environ)
    with contextlib.suppress(OSError):  # the launcher is gone, and its warden ends what is left
        keep(sys.argv[1], next(env[name] for name in RANK_NAMES if name in env), sys.argv[2:], pinned(env))


if __name__ == "__main__":
    main()
