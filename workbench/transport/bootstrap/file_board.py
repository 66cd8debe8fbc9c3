"""A board in a folder that only this user can enter, for ranks that ``workbench run`` has started on one machine."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from urllib.parse import quote

from workbench.errors import LaunchError


class FileBoard:
    """See :class:`workbench.transport.bootstrap.rendezvous.Board`: a file for each name.

    Args:
        folder: the same for all ranks; it is made.

    Raises:
        LaunchError: it cannot be.
    """

    where = "the job's own folder"

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._broken(error) from None

    def read(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._broken(error) from None

    def write(self, name: str, value: bytes) -> None:
        """Whoever reads meanwhile sees what stood there, or all of this."""
        fresh = self._folder / f"new.{os.getpid()}.{threading.get_ident()}"
        try:
            fresh.write_bytes(value)
            fresh.replace(self._path(name))
        except OSError as error:
            raise self._broken(error) from None

    def _path(self, name: str) -> Path:
        return self._folder / f"value.{quote(name, safe='')}"

    def _broken(self, error: OSError) -> LaunchError:
        return LaunchError(
            f"init(): the ranks cannot use {self._folder}: {error.strerror}. Does TMPDIR have free space?"
        )
