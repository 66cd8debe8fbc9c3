"""Which ranks are gone? By their process where they share a host, else by the end of the connection or by silence."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from workbench.runtime.connection import peer
from workbench.runtime.messages import Beat, Lost

_CUT_OFF_S = 1.0  # a process that is there still, but whose connection has ended, gets this time to end as well


class LifeWatch:
    """Rank 0's watch over the others; a process that is there counts as alive, however silent it is."""

    def __init__(self, peer_timeout_s: float) -> None:
        self._timeout_s, self._here = peer_timeout_s, host_id()
        self._pids: dict[int, int] = {}
        self._heard: dict[int, float] = {}
        self._cut_off: dict[int, float] = {}  # when

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
        self._cut_off.pop(rank, None)

    def cut_off(self, rank: int, now: float) -> None:
        """A rank's connection has ended; that it has not said good-bye before makes it suspect."""
        if rank in self._heard:
            self._cut_off[rank] = now

    @property
    def doubts(self) -> bool:
        """Is a rank suspect? Then :meth:`lost` should be called often."""
        return bool(self._cut_off)

    def lost(self, now: float) -> list[Lost]:
        """Ranks found to be gone since the last call."""
        found = []
        for rank, last in list(self._heard.items()):
            pid = self._pids.get(rank)
            if pid is not None and not is_alive(pid):
                found.append(
                    Lost(rank, f"its process {pid} has ended without a word (killed, out of memory, or crashed)")
                )
            elif rank in self._cut_off and (pid is None or now - self._cut_off[rank] > _CUT_OFF_S):
                found.append(Lost(rank, "its connection to rank 0 ended without a word"))
            elif pid is None and now - last > self._timeout_s:
                found.append(Lost(rank, f"no sign of life for {self._timeout_s:g} s"))
        for lost in found:
            self.forget(lost.rank)
        return found


class Rank0Watch:
    """A rank's watch over rank 0, for what the end of the connection does not tell.

    A process that was forked from rank 0 holds the connection open; a host that lost its power does not end it.

    Attributes:
        why: rank 0 counts as lost; empty if it does not.
    """

    def __init__(self, sock: socket.socket, peer_timeout_s: float) -> None:
        self._timeout_s, self._pid, self.why = peer_timeout_s, peer(sock)[0], ""
        self._heard = float("inf")

    def heard(self, now: float) -> None:
        """Rank 0 has shown a sign of life."""
        self._heard = now

    def look(self, now: float) -> None:
        """Find out about :attr:`why`."""
        silent = now - self._heard > self._timeout_s
        if self._pid and not is_alive(self._pid):
            self.why = f"its process {self._pid} has ended without a word (killed, out of memory, or crashed)"
        elif silent and self._pid and _state(self._pid) == "T":
            self.why = f"its process {self._pid} has been stopped for {self._timeout_s:g} s (Ctrl-Z, SIGSTOP)"
        elif silent and not self._pid:
            self.why = f"no sign of life for {self._timeout_s:g} s"


def _state(pid: int) -> str:
    """The letter of a process's state, as ``ps`` shows it; empty if there is none, or no ``/proc``."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Is there such a process, and is it more than a zombie?"""
    if state := _state(pid):
        return state not in "ZX"
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
