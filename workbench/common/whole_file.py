"""Files that are written as a whole or not at all: what was there stays until the disk holds all of the new."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or leave what was there: a full disk or Ctrl-C would else leave half of the new, and lose the old.

    An existing file keeps its mode: whoever could not read it still cannot. A pipe or device is written as it is, and
    so is a file in a folder that takes no others, or behind another user's link.

    Args:
        path: of the file; a link is followed.
        content: its bytes.

    Raises:
        OSError: it cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_whole(Path(folder, "a.txt"), b"one")
        ...     Path(folder, "a.txt").read_text()
        'one'
    """
    link = path.is_symlink()
    if link and path.lstat().st_uid != os.geteuid():  # the kernel knows which links of others are traps
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path)) if link else path
    exists = path.exists()
    if exists and not (path.is_file() and os.access(path.parent, os.W_OK)):
        path.write_bytes(content)
        return
    new = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.new")
    try:
        with new.open("xb") as file:  # never through a link that somebody has put there
            if exists:
                os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
            file.write(content)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
