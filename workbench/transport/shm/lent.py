"""Memory of a framework's own files, such as torch's shared storages: a part of what the ranks of a machine share.

A rank writes into a table in its arena which file it lends. Each rank opens it through ``/proc/<pid>/fd/<n>`` when a
response first names an offset in it. Offsets of what is lent begin behind the arena, and none is given twice.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from workbench.core.backend.base import Array

TABLE_BYTES = 512  # 16 files, for each rank has a descriptor for each of all ranks'
_START, _BYTES, _FILE, _INODE = range(4)


class LentFiles:
    """What one rank lends, as each rank sees it.

    Args:
        pid: of the rank's process.
        table: bytes of its arena.

    Attributes:
        table: by file its first offset (0: the row is free), bytes, descriptor in that process and inode.
    """

    def __init__(self, pid: int, table: Array) -> None:
        self._pid, self.table = pid, table.view(np.int64).reshape(-1, 4)
        self._open: dict[int, Array] = {}

    def piece(self, offset: int, nbytes: int) -> Array:
        """Some of the bytes.

        Raises:
            OSError: the file cannot be opened.
        """
        start = max((start for start in self._open if start <= offset), default=0)
        if not start or offset - start + nbytes > len(self._open[start]):
            start = self._open_at(offset)
        return self._open[start][offset - start :][:nbytes]

    def _open_at(self, offset: int) -> int:
        there = {int(row[_START]): row for row in self.table if row[_START]}
        self._open = {start: mapped for start, mapped in self._open.items() if start in there}
        start = max(start for start in there if start <= offset)
        _, nbytes, number, inode = map(int, there[start])
        file = os.open(f"/proc/{self._pid}/fd/{number}", os.O_RDWR)
        try:
            if os.fstat(file).st_ino != inode:
                raise OSError(f"Descriptor {number} of process {self._pid} is another file by now.")
            self._open[start] = np.frombuffer(mmap.mmap(file, nbytes), np.uint8)
        finally:
            os.close(file)
        return start
