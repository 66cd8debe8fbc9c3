"""A learner's files as a tar archive on standard output, read with the learner's own rights.

``python -m workbench.cli.class_server.hand_over FOLDER BYTES``; whoever collects them follows no link, waits for no
pipe, and takes no more bytes than the learner may have. What is left out is named on standard error.
"""

from __future__ import annotations

import os
import stat
import sys
import tarfile
from typing import BinaryIO

SKIPPED = (".cache", ".ipython", ".local", ".run", ".config", ".jupyter", "lost+found")


class _AsLong:
    """A file that has its announced length, whatever is written into it meanwhile."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def main(folder: str, most: int) -> None:
    """Write the archive."""
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for at, folders, names in os.walk(folder):
            folders[:] = sorted(each for each in folders if at != folder or each not in SKIPPED)
            for name in sorted(names):
                path = os.path.join(at, name)
                name = os.path.relpath(path, folder)
                try:
                    with open(
                        path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
                    ) as file:
                        about = os.fstat(file.fileno())
                        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
                            print(f"{name!a} ({about.st_size} bytes)", file=sys.stderr)
                            continue
                        most -= about.st_size
                        entry = tarfile.TarInfo(name)
                        entry.size, entry.mtime = about.st_size, int(about.st_mtime)
                        archive.addfile(entry, _AsLong(file))  # type: ignore[arg-type]
                except OSError as error:
                    print(f"{name!a} ({error.strerror})", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
