"""The process above a notebook's judge: when the judge ends, or is ended, whatever it has started ends with it.

``python reaper.py COMMAND …``. Neither a session of its own nor an empty environment hides a process from here: the
kernel makes this one the parent of every descendant whose own parent has ended. Run by its path, it imports little.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_SUBREAPER, _DUMPABLE = 36, 4  # of prctl(2)
_PATIENCE_S = 10.0


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends; nothing happens where there is no Linux."""
    _prctl(_SUBREAPER, 1)


def hide(hidden: bool = True) -> None:
    """Let no other process of this user read this one's memory, or open its descriptors; or let them again."""
    _prctl(_DUMPABLE, int(not hidden))


def _prctl(what: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """All that live below a process, parents first."""
    found: list[int] = []
    ahead = [pid]
    while ahead:
        new = _children(ahead.pop())
        found += new
        ahead += new
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def end_descendants(spare: Collection[int] = ()) -> bool:
    """Kill all that live below this process, in whatever session. True if none is left.

    All are stopped before the first is killed, so that none can start another one meanwhile.

    Args:
        spare: processes to leave alone, with their descendants.
    """
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        kept = {pid for one in spare for pid in (one, *descendants(one))}
        mine = [pid for pid in descendants(os.getpid()) if pid not in kept]
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in mine:
                with suppress(OSError):
                    os.kill(pid, sign)
        _reap(kept)
        if not mine:
            return True
        time.sleep(0.005)
    return False


def _reap(spare: Collection[int]) -> None:
    """Bury those that have ended; they would still count as descendants."""
    for pid in _children(os.getpid()):
        if pid not in spare:
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def main() -> int:
    """Run a command; when it ends, end what it has left behind."""
    adopt_orphans()
    hide()
    # Where the notebooks are there may be a folder `workbench` of a learner's, and Python 3.10 would import that.
    with subprocess.Popen(sys.argv[1:], cwd="/") as process:
        for own in (sys.stdin, sys.stdout):
            os.close(own.fileno())  # they are the command's: its end must be seen at the other side
        while process.poll() is None:
            with suppress(ChildProcessError, subprocess.TimeoutExpired):
                process.wait(0.5)
    end_descendants()
    return process.returncode


if __name__ == "__main__":
    code = main()
    os._exit(code if code >= 0 else 128 - code)
