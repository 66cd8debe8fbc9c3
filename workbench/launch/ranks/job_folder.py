"""The folder of a job's files, which is locked while its job or its watchdog lives.

A batch system may kill a job and its watchdog at one blow. Then the folder stays, but its lock does not, and the next
job of the same user on this machine deletes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

BEGINS = "workbench-job-"
_LOCK = "owner"
_YOUNG_S = 60.0  # so long a folder is left alone in any case: its job may not have locked it yet


def make(path: str = "") -> tuple[Path, int]:
    """Make a folder that only this user may enter, and delete the folders of jobs that were killed.

    Args:
        path: where; by default a new name in the folder of temporary files.

    Returns:
        The folder, and a descriptor which holds its lock in this process and in those that inherit it.

    Raises:
        FileExistsError: there is such a folder.
    """
    folder = Path(path or tempfile.mkdtemp(prefix=BEGINS))
    if path:
        folder.mkdir(0o700)
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: nobody will think that he may delete it, either
        fcntl.flock(lock, fcntl.LOCK_EX)
    delete_stale(folder.parent)
    return folder, lock


def delete_stale(parent: Path) -> None:
    """Delete this user's folders in ``parent`` whose jobs have ended without doing so."""
    for folder in parent.glob(f"{BEGINS}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > _YOUNG_S and _unlocked(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _unlocked(folder: Path) -> bool:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
