"""Download a file from the internet once, even if many ranks ask for it at the same time.

1. The rank that has the lock of the folder downloads; the others wait, with a deadline, and then find the file.
   The operating system frees the lock of a process that dies.
2. The download is written to a separate file next to the target, is checked there, and is renamed in one step. So a
   file with the target's name is always complete.

The lock saves traffic, the rename makes it right: on a file system without locks every rank downloads,
and the last one wins with the same content.

pooch would save the lines of one request, and has neither the lock, nor a second address, nor a deadline over all.
"""

from __future__ import annotations

import http.client
import logging
import os
import secrets
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from workbench import config
from workbench.common.backoff import Backoff
from workbench.common.notice import Notice
from workbench.errors import DataNotFoundError

CHUNK_BYTES = 1 << 16
SILENCE_S = 15.0  # a server that says nothing for so long is given up
PAUSE_S = 0.05  # between two looks at a lock that another process holds

_log = logging.getLogger(__name__)


def fetch(urls: Sequence[str], target: Path, check: Callable[[Path], object], *, timeout_s: float = 300.0) -> Path:
    """Download ``target`` from the first address that gives what ``check`` accepts.

    Any number of processes may call this at once; one of them downloads. If it fails, the next one tries.

    Args:
        urls: addresses of the same file, tried in turn; https, or http on this machine.
        target: the file's path; nothing is done if it exists.
        check: raises ValueError for a file that is not the wanted one.
        timeout_s: for waiting and downloading together, in seconds.

    Returns:
        ``target``.

    Raises:
        DataNotFoundError: no address gave the file; the text has each one's reason.
        TimeoutError: another process still downloads after ``timeout_s``.
        OSError: the folder cannot be written.

    Example:
        >>> here = Path(__file__)
        >>> fetch(["https://example.org/never-asked"], here, check=len) == here
        True
    """
    deadline = time.monotonic() + timeout_s
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)

    def sign(seconds: float) -> str:
        done = max((each.stat().st_size for each in target.parent.glob(f".{target.name}.*.part")), default=0)
        return f"downloading {target.name}: {done / 1e6:.1f} MB, {seconds:.0f} s"

    with Notice(config.stream()).of(sign), locked(target.parent / ".lock", deadline, f"downloads into {target.parent}"):
        if not target.exists():
            _from_any(urls, target, check, deadline)
    return target


def _from_any(urls: Sequence[str], target: Path, check: Callable[[Path], object], deadline: float) -> None:
    reasons = []
    for url in urls:
        try:
            return _from_one(url, target, check, deadline)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reasons.append(f"  {url}: {str(error) or type(error).__name__}")
    raise DataNotFoundError(f"{target.name} could not be downloaded:\n" + "\n".join(reasons))


def _from_one(url: str, target: Path, check: Callable[[Path], object], deadline: float) -> None:
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        _save(url, part, deadline)
        check(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _save(url: str, path: Path, deadline: float) -> None:
    address = urllib.parse.urlsplit(url)
    if address.scheme != "https" and (address.scheme, address.hostname) != ("http", "127.0.0.1"):
        raise ValueError("only https addresses are fetched")
    _log.info("downloading %s", url)
    silence_s = min(SILENCE_S, max(deadline - time.monotonic(), 0.001))
    with urllib.request.urlopen(url, timeout=silence_s) as response, path.open("xb") as file:
        announced = response.headers.get("Content-Length")
        received = _copy(response, file, deadline)
    if announced is not None and received != int(announced):
        raise ValueError(f"the connection ended after {received:,} of {int(announced):,} bytes")


def _copy(response: http.client.HTTPResponse, file: IO[bytes], deadline: float) -> int:
    received = 0
    # read1 returns after one packet; read would wait for a whole chunk, past the deadline on a slow line.
    while chunk := response.read1(CHUNK_BYTES):
        received += file.write(chunk)
        if time.monotonic() > deadline:
            raise TimeoutError(f"the deadline came after {received:,} bytes")
    return received


@contextmanager
def locked(path: Path, deadline: float, doing: str) -> Iterator[None]:
    """Hold the lock file, for which others may have to be waited until the deadline; they are ``doing`` something."""
    with path.open("a+") as file:  # closing it frees the lock
        backoff = Backoff(deadline - time.monotonic(), longest_s=PAUSE_S)
        while not _try_lock(file):
            if not backoff.pause():
                raise TimeoutError(
                    f"waited for another process ({path.read_text() or 'unknown'}) that {doing}, until the deadline. "
                    "Look for a stopped one, or allow more time."
                )
        file.truncate(0)
        file.write(f"rank {config.launch().rank}, process {os.getpid()}")
        file.flush()
        yield


def _try_lock(file: IO[str]) -> bool:
    """True if this process may go on: it has the lock, or there are no locks here."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
