"""Signs that a launcher has started this process among others, though its environment does not say so any more.

1. MPI, if it has been initialised here, knows how many processes belong to it.
2. The system keeps the environment with which a process began: ``os.environ.clear()`` does not reach it. A parent's
   shows what a wrapper has left out (``env -i``, a script).
3. A parent may be the supervisor that ``workbench run`` puts above each rank.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from workbench import config
from workbench.errors import LaunchError
from workbench.transport.bootstrap.ancestors import ancestors

try:
    import psutil
except ImportError:  # a browser, which has no other processes
    psutil = None

# What stands above a rank of ``workbench run``: its supervisor's file, or the one that unpacks it under gforker.
SUPERVISORS = tuple(
    os.path.join("workbench", "launch", *each) for each in (("ranks", "supervisor.py"), ("start", "gforker.py"))
)


def is_supervisor(process: psutil.Process) -> bool:
    """Does this process supervise a rank?"""
    return any(word.endswith(SUPERVISORS) for word in process.cmdline())


def note_member(path: str) -> None:
    """Leave word, for the launcher and for what this process starts, that this is the rank's process with ``init()``.

    Args:
        path: the file, see :func:`workbench.config.member_file`; "" for none.
    """
    if path:
        with contextlib.suppress(OSError):
            Path(path).write_text(str(os.getpid()))


def sign_of_others() -> str:
    """What shows that this process is one of several ranks, in words; "" where nothing does."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi and mpi.Is_initialized() and not mpi.Is_finalized() and (size := mpi.COMM_WORLD.Get_size()) > 1:
        return f"MPI has made it one of {size} processes"
    with contextlib.suppress(psutil.Error):
        mine = psutil.Process()
        if (launch := _began_with(mine)) and launch.launcher != "none":
            return f"it began as {_one_of(launch)}" if launch.several else ""
        return _sign_above(ancestors())
    return ""


def _sign_above(parents: list[psutil.Process]) -> str:
    """What the nearest parent shows that says something of a launcher."""
    for parent in parents:
        if not (launch := _began_with(parent)):
            if is_supervisor(parent) and sum(map(is_supervisor, parent.parent().children())) > 1:
                return f"its parent {parent.pid} is the supervisor of one of several ranks"
            continue
        if launch.launcher != "none":
            member = config.member_file(parent.environ())
            ours = member or is_supervisor(parent)
            if not (ours and launch.several) or _is_member(member, parents):
                return ""
            return f"its parent, process {parent.pid}, began as {_one_of(launch)}"
    return ""


def _began_with(process: psutil.Process) -> config.Launch | None:
    """What a launcher said to a process when it began; None where the system does not show its environment."""
    try:
        return config.launch(process.environ())
    except (psutil.Error, OSError, LaunchError):
        return None


def _is_member(path: str, parents: list[psutil.Process]) -> bool:
    """Is one of the parents in the job, as the rank's process? Then this one is a helper of it."""
    try:
        return bool(path) and int(Path(path).read_text()) in {parent.pid for parent in parents}
    except (OSError, ValueError):
        return False


def _one_of(launch: config.Launch) -> str:
    return "a rank of an elastic job" if launch.launcher == "elastic" else f"rank {launch.rank} of {launch.size}"
