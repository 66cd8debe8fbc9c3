"""Download a file from the internet once, even if many ranks ask for it at the same time.

One rank downloads, and checks the file before it gets its name, while the others wait: see :mod:`one_copy`. On a file
system without locks every rank downloads, and the last one wins with the same content.

pooch would save the lines of one request, and has neither the lock, nor a second address, nor a deadline over all.
"""

from __future__ import annotations

import http.client
import logging
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from workbench.data.one_copy import by_one_rank
from workbench.errors import DataNotFoundError

CHUNK_BYTES = 1 << 16
SILENCE_S = 15.0  # a server that says nothing for so long is given up

_log = logging.getLogger(__name__)


def fetch(urls: Sequence[str], target: Path, check: Callable[[Path], object], *, timeout_s: float = 300.0) -> Path:
    """Download ``target`` from the first address that gives what ``check`` accepts.

    Any number of processes may call this at once; one of them downloads. If it fails, those that waited fail, too.

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

    def from_any(part: Path) -> None:
        reasons = []
        for url in urls:
            try:
                _save(url, part, deadline)
                check(part)
                return
            except (OSError, ValueError, http.client.HTTPException) as error:
                reasons.append(f"  {url}: {str(error) or type(error).__name__}")
        raise DataNotFoundError(f"{target.name} could not be downloaded:\n" + "\n".join(reasons))

    def sign(seconds: float) -> str:
        done = max((each.stat().st_size for each in target.parent.glob(f".part-*-{target.name}")), default=0)
        return f"downloading {target.name}: {done / 1e6:.1f} MB, {seconds:.0f} s"

    return by_one_rank(target, from_any, timeout_s, sign)


def _save(url: str, path: Path, deadline: float) -> None:
    address = urllib.parse.urlsplit(url)
    if address.scheme != "https" and (address.scheme, address.hostname) != ("http", "127.0.0.1"):
        raise ValueError("only https addresses are fetched")
    _log.info("downloading %s", url)
    silence_s = min(SILENCE_S, max(deadline - time.monotonic(), 0.001))
    with urllib.request.urlopen(url, timeout=silence_s) as response, path.open("wb") as file:
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
