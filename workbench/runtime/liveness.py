"""Which ranks are gone? By their process where they share rank 0's host, else by their silence."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from workbench.runtime.messages import Beat, Lost


class LifeWatch:
    """Rank 0's watch over the others; a process that is there counts as alive, however silent it is."""

    def __init__(self, peer_timeout_s: float) -> None:
        self._timeout_s, self._here = peer_timeout_s, host_id()
        self._pids: dict[int, int] = {}
        self._heard: dict[int, float] = {}

    def meet(self, beat: Beat, now: float) -> None:
        """A rank has introduced itself."""
        self._heard[beat.rank] = now
        if beat.host == self._here:
            self._pids[beat.rank] = beat.pid

    def heard(self, rank: int, now: float) -> None:
        """A rank has shown a sign of life."""
        if rank in self._heard:
            self._heard[rank] = now

    def forget(self, rank: int) -> None:
        """A rank has said good-bye."""
        self._heard.pop(rank, None)

    def lost(self, now: float) -> list[Lost]:
        """Ranks found to be gone since the last call."""
        found = []
        for rank, last in list(self._heard.items()):
            pid = self._pids.get(rank)
            if pid is not None and not is_alive(pid):
                found.append(
                    Lost(rank, f"its process {pid} has ended without a word (killed, out of memory, or crashed)")
                )
            elif pid is None and now - last > self._timeout_s:
                found.append(Lost(rank, f"no sign of life for {self._timeout_s:g} s"))
        for lost in found:
            self.forget(lost.rank)
        return found


def is_alive(pid: int) -> bool:
    """Is there such a process, and is it more than a zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def host_id() -> str:
    """Equal for two processes that can see each other's process ids."""
    try:
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
