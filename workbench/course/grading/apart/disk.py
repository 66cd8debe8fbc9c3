"""How much a process with learners' code has written: a limit on each file does not bound their number."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

_EVERY_S = 0.5
_MOST_FILES = 50_000


class Disk:
    """Looks at a folder from time to time.

    Args:
        folder: where the process writes.
        most: bytes of all files in it.
    """

    def __init__(self, folder: str, most: int) -> None:
        self._folder, self._most, self._next = folder, most, 0.0
        self._free = _free(folder)

    def look(self) -> str:
        """What is too much, or ""; most calls look at nothing."""
        if time.monotonic() < self._next:
            return ""
        begun = time.monotonic()
        bytes_, files = 0, 0
        for size in _sizes(self._folder):
            bytes_, files = bytes_ + size, files + 1
            if bytes_ > self._most:
                return f"wrote more than {self._most >> 20:,} MiB"
            if files > _MOST_FILES:
                return f"wrote more than {_MOST_FILES:,} files"
        if _free(self._folder) < self._free / 2:  # of files that are deleted, and still open, too
            return "filled the disk: there is less than half of the room that there was"
        self._next = begun + _EVERY_S + 10 * (time.monotonic() - begun)
        return ""


def _free(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _sizes(folder: str) -> Iterator[int]:
    """Bytes on the disk of all that is below a folder, links not followed."""
    ahead = [folder]
    while ahead:
        try:
            with os.scandir(ahead.pop()) as found:
                for one in found:
                    yield one.stat(follow_symlinks=False).st_blocks * 512
                    if one.is_dir(follow_symlinks=False):
                        ahead.append(one.path)
        except OSError:
            continue  # it has just been deleted, or its path is too long
