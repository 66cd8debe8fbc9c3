"""One job at a time writes into a folder of checkpoints: a lock that ends with the process that holds it.

It is ``flock`` on a file in the folder, so the kernel lets go of it when the process ends, by kill -9 too, and over NFS
the server does. A notebook's cell that is run again makes a second state in the process of the first: it takes the
lock over, and the first state writes no more.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
import weakref
from pathlib import Path

from workbench.errors import CheckpointError

_NAME, _POLL_S = "lock", 0.1
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


class FolderLock:
    """The lock of one folder; not held yet.

    Args:
        folder: must be there when the lock is taken.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lock = FolderLock(Path(folder))
        ...     lock.take(timeout_s=1.0)
        ...     print(lock.held())
        ...     lock.release()
        True
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._closing: weakref.finalize[[int], FolderLock] | None = None
        self._file: tuple[int, int] | None = None
        self.taken_over = False

    def held(self) -> bool:
        """Is it, and is the file that is locked still the folder's?"""
        return self._file is not None and self._file == _identity(self._path)

    def take(self, timeout_s: float) -> None:
        """Wait until no other job has it; at once if it is held already.

        Raises:
            CheckpointError: another job still has it after ``timeout_s``, or another state of this process.
            OSError: the folder is gone, or cannot be written to.
        """
        if self.taken_over:
            raise CheckpointError(f"Another state of this process writes to {self._path.parent}: this one stops.")
        if self.held():
            return
        self.release()
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._wait(handle, time.monotonic() + timeout_s)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        except BaseException:
            os.close(handle)
            raise
        self._closing, self._file = weakref.finalize(self, os.close, handle), _identity(self._path)
        _OF_THIS_PROCESS[str(self._path)] = self

    def _wait(self, handle: int, until: float) -> None:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    logging.getLogger("workbench").warning(
                        "checkpoint: %s cannot be locked (%s): do not let a second job write there.", self._path, error
                    )
                    return
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
            before = _OF_THIS_PROCESS.get(str(self._path))
            if before is not None and before.held():
                before.taken_over = True
                before.release()
            elif time.monotonic() > until:
                holder = os.pread(handle, 200, 0).decode(errors="replace") or "another job"
                raise CheckpointError(
                    f"{holder} writes checkpoints to {self._path.parent}. End it, or give this job another folder."
                )
            else:
                time.sleep(_POLL_S)

    def release(self) -> None:
        """Let another job have it."""
        self._file = None
        if self._closing is not None:
            self._closing()
            self._closing = None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


_OF_THIS_PROCESS: weakref.WeakValueDictionary[str, FolderLock] = weakref.WeakValueDictionary()
