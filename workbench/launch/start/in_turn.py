"""Starts that come in turn, where many users of a machine start something large at the same moment.

Thirty learners who start four engines each on two cores would all wait for minutes, and then too long; one after the
other, the first has its engines after seconds. A turn is a lock on a file that all users of the machine share. It ends
with its process, and nobody waits for it longer than he says: then he starts without one.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOOK_S = 0.1


@contextmanager
def in_turn(longest_s: float, waits: Callable[[], None], at_once: int = 0, folder: str = "") -> Iterator[None]:
    """Wait until few others start something here, and let others wait until the block has ended.

    Args:
        longest_s: so long at most.
        waits: is called once, if it has to be waited for.
        at_once: how many start at the same time; by default as many as there are cores, and four at least.
        folder: with the files; by default the machine's for temporary files.

    Example:
        >>> with in_turn(1.0, lambda: None):
        ...     "starts"
        'starts'
    """
    places = [Path(folder or tempfile.gettempdir(), f"workbench-starts-{i}") for i in range(at_once or _most())]
    until, told = time.monotonic() + longest_s, False
    while (held := next((one for one in map(_locked, places) if one is not None), None)) is None:
        if time.monotonic() > until:
            break
        if not told:
            waits()
            told = True
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _most() -> int:
    return max(4, os.cpu_count() or 1)


def _locked(path: Path) -> int | None:
    """The file's descriptor, with the lock; None while another process has it. A file that is none is nobody's turn."""
    if fcntl is None:
        return None
    for flags in (os.O_CREAT | os.O_EXCL, os.O_NOFOLLOW | os.O_NONBLOCK):  # another user's is opened, never made anew
        with suppress(OSError):
            found = os.open(path, os.O_RDONLY | flags, 0o644)
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(found)
                return None
            return found
    return None
