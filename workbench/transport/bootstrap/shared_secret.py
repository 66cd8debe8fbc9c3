"""A secret for ranks whose launcher gives them none: rank 0 draws it, and the others find it in a file.

Only this user can read the file. Its name is drawn as well, and rank 0 writes it on the ranks' board. So
no file of another job is ever taken for this one's, and a stranger who writes another name there only keeps the ranks
from finding each other. When they have, rank 0 removes the file.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError
from contextlib import suppress
from pathlib import Path

from workbench.errors import LaunchError
from workbench.machine import check_owner
from workbench.transport.background import background
from workbench.transport.bootstrap.rendezvous import Board, looks

_TICKET = "ticket"
_PATIENCE_S = 10.0  # with a network's file system that shows a new file late
_LAST_WORDS_S = 2.0  # to a board that may not answer any more
_STALE_S = 24 * 3600.0
_NAME = re.compile(r"[0-9a-f]{32}")


class SecretFile:
    """The secret, and on rank 0 the file with it.

    Args:
        board: where the ranks find each other.
        rank: this one.
        folders: where the file may be, the likeliest first.
        timeout_s: deadline for rank 0 to come.
        tick: called amid the wait.

    Raises:
        LaunchError: there is no file that can be trusted, or this rank does not see it.
    """

    def __init__(
        self, board: Board, rank: int, folders: Sequence[Path], timeout_s: float, tick: Callable[[], None]
    ) -> None:
        self._file: Path | None = None
        self._board = board
        if rank == 0:
            self._file, self.secret = _made(folders)
            atexit.register(self._unlink)
            board.write(_TICKET, self._file.name.encode())
        else:
            self.secret = _found(board, rank, folders, timeout_s, tick)

    def remove(self) -> None:
        """All ranks have the secret: nobody needs the file any more, and the next bootstrap must not find it."""
        if self._file is not None:
            with suppress(LaunchError, TimeoutError):
                background(lambda: self._board.write(_TICKET, b"")).result(_LAST_WORDS_S)
            self._unlink()

    def _unlink(self) -> None:
        if self._file is not None:
            atexit.unregister(self._unlink)
            with suppress(OSError):
                self._file.unlink()
            self._file = None


def _made(folders: Sequence[Path]) -> tuple[Path, bytes]:
    secret, problems = secrets.token_hex(32).encode(), []
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_owner(folder.lstat(), folder, stat.S_ISDIR, 0o022)
            _tidy(folder)
            path = folder / secrets.token_hex(16)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secret)
        except OSError as error:
            problems.append(str(error))
        else:
            return path, secret
    raise LaunchError(f"No file for the job's secret could be made ({'; '.join(problems)}). {_CURE}")


def _tidy(folder: Path) -> None:
    """Remove what jobs have left whose ranks never met."""
    for path in folder.iterdir():
        with suppress(OSError):
            if _NAME.fullmatch(path.name) and path.lstat().st_mtime < time.time() - _STALE_S:
                path.unlink()


def _found(board: Board, rank: int, folders: Sequence[Path], timeout_s: float, tick: Callable[[], None]) -> bytes:
    seen, since, problem = "", time.monotonic(), ""
    for _ in looks(timeout_s, tick):
        name = (board.read(_TICKET) or b"").decode(errors="replace")
        if name and (secret := _read(name, folders)):
            return secret
        if name != seen or not name:
            seen, since = name, time.monotonic()
        elif time.monotonic() > since + _PATIENCE_S:
            problem = f"does not see the file with the job's secret that rank 0 named at {board.where}"
            break
    problem = problem or f"found no message of rank 0 at {board.where} within {timeout_s:g} s"
    raise LaunchError(
        f"init(): rank {rank} {problem}. Is {folders[0]} the same folder on all hosts, and does nobody else use it? "
        f"{_CURE}"
    )


def _read(name: str, folders: Sequence[Path]) -> bytes:
    """What the file says; empty if there is none that only this user could have written."""
    for folder in folders if _NAME.fullmatch(name) else ():
        with suppress(OSError):
            check_owner(folder.lstat(), folder, stat.S_ISDIR, 0o022)
            with os.fdopen(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                check_owner(os.fstat(file.fileno()), folder / name, stat.S_ISREG, 0o077)
                return file.read(256)
    return b""


_CURE = (
    "Or set WORKBENCH_SECRET to a random text, the same for all ranks: export WORKBENCH_SECRET=$(openssl rand -hex 16)"
)
