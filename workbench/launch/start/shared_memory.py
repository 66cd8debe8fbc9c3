"""Is there room in ``/dev/shm`` for what an MPI library keeps there for its ranks?

Where it is full a rank gets SIGBUS when it writes, and nothing names the cause. So the room is reserved before MPI
starts, which either succeeds or says why not, and given back at once.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from workbench.common.text import size

FOLDER = Path("/dev/shm")
_RANK_BYTES, _JOB_BYTES = 6 << 20, 12 << 20  # MPICH 5: 5.4 MB a rank, and for a moment some more
CURE = "A container gets more with --shm-size=1g, a pod with an emptyDir of medium Memory at /dev/shm."


def needed_bytes(n: int) -> int:
    """What ``n`` ranks of one machine need, with some to spare."""
    return _JOB_BYTES + n * _RANK_BYTES if n > 1 else 0


def most_ranks(free_bytes: int) -> int:
    """For how many ranks so much is enough.

    Example:
        >>> most_ranks(64 << 20), needed_bytes(8) == 60 << 20
        (8, True)
    """
    return max(1, (free_bytes - _JOB_BYTES) // _RANK_BYTES)


def problem(n: int, folder: Path = FOLDER) -> str:
    """Why MPI's ranks would not start here, and what to do; "" if they do.

    Args:
        n: how many ranks.
        folder: where the library keeps its shared memory.
    """
    need = needed_bytes(n)
    if sys.platform != "linux" or not need:
        return ""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, need)
    except OSError as error:
        why = error.strerror or str(error)
        return f"{n} ranks of MPI need {size(need)} in {folder}, and cannot reserve them{_free(folder)}: {why}. {CURE}"
    return ""


def free_bytes(folder: Path = FOLDER) -> int | None:
    """How much is free; None if the folder is not there."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _free(folder: Path) -> str:
    free = free_bytes(folder)
    return "" if free is None else f" ({size(free)} are free)"
