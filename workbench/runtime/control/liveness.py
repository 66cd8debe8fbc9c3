"""Which ranks are gone? By their process where they share a host, else by the end of the connection or by silence."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from workbench.common.ports import peer
from workbench.common.text import rank_list
from workbench.machine import has_ended, host_id, suspended, why_stopped
from workbench.runtime.events import Beat, Lost

_ENDED = "its process {} has ended without a word (killed, out of memory, or crashed)"
_CUT_OFF_S = 1.0  # a process that is there still, but whose connection has ended, gets this time to end as well


class RankLiveness:
    """Rank 0's watch over the others; a process that is there, and not stopped, is alive, however silent.

    Attributes:
        hosts: by rank, what its host is called; empty where all share one.
    """

    def __init__(self, peer_timeout_s: float) -> None:
        self._timeout_s, self._here = peer_timeout_s, host_id()
        self._pids: dict[int, int] = {}
        self._last_sign: dict[int, float] = {}
        self._cut_off: dict[int, float] = {}  # when
        self._given_up: dict[int, str] = {}  # why
        self.hosts: Sequence[str] = ()

    def register(self, beat: Beat, now: float) -> None:
        self._last_sign[beat.rank] = now
        if beat.host == self._here:
            self._pids[beat.rank] = beat.pid

    def sign_of_life(self, rank: int, now: float) -> None:
        if rank in self._last_sign:
            self._last_sign[rank] = now

    def forget(self, rank: int) -> None:
        """A rank has said good-bye."""
        for each in (self._last_sign, self._cut_off, self._given_up):
            each.pop(rank, None)

    def cut_off(self, rank: int, now: float) -> None:
        """A rank's connection has ended; that it has not said good-bye before makes it suspect."""
        if rank in self._last_sign:
            self._cut_off[rank] = now

    def give_up(self, rank: int, why: str) -> None:
        """Nothing can be done with a rank any more."""
        if rank in self._last_sign:
            self._given_up[rank] = why

    def slept(self, seconds: float, now: float) -> None:
        """This process itself has not run for so long: others' silence meanwhile says nothing."""
        if seconds > self._timeout_s / 2:
            self._last_sign = dict.fromkeys(self._last_sign, now)

    def stopped(self) -> dict[int, str]:
        """The ranks whose processes are stopped at present, and what that means."""
        return {rank: why for rank, pid in self._pids.items() if rank in self._last_sign and (why := why_stopped(pid))}

    @property
    def has_suspects(self) -> bool:
        """Is a rank suspect? Then :meth:`lost` should be called often."""
        return bool(self._cut_off or self._given_up)

    def lost(self, now: float) -> list[Lost]:
        """Ranks found to be gone since the last call."""
        found = []
        for rank, last in list(self._last_sign.items()):
            pid = self._pids.get(rank)
            if pid is not None and has_ended(pid):
                found.append(Lost(rank, _ENDED.format(pid) + self._on_host(rank)))
            elif rank in self._given_up:
                found.append(Lost(rank, self._given_up[rank] + self._on_host(rank)))
            elif rank in self._cut_off and (pid is None or now - self._cut_off[rank] > _CUT_OFF_S):
                found.append(Lost(rank, f"its connection to rank 0 ended without a word{self._on_host(rank)}"))
            elif now - last > self._timeout_s and (why := _why_silent(pid, self._timeout_s)):
                found.append(Lost(rank, why + (self._from_where(rank, now) if pid is None else self._on_host(rank))))
        for lost in found:
            self.forget(lost.rank)
        return found

    def _from_where(self, rank: int, now: float) -> str:
        """The host, with all of its ranks where all are silent."""
        here = [each for each in self._last_sign if self.hosts and self.hosts[each] == self.hosts[rank]]
        if here and all(now - self._last_sign[each] > self._timeout_s / 2 for each in here):
            return f" from host {self.hosts[rank]} ({rank_list(here)}; an mpiexec waits for it until Ctrl-C)"
        return self._on_host(rank)

    def _on_host(self, rank: int) -> str:
        return f", on host {self.hosts[rank]}" if self.hosts else ""


class Rank0Liveness:
    """A rank's watch over rank 0, for what the end of the connection does not tell.

    A process that was forked from rank 0 holds the connection open; a host that lost its power does not end it.

    Attributes:
        why: rank 0 counts as lost; empty if it does not.
    """

    def __init__(self, sock: socket.socket, peer_timeout_s: float) -> None:
        self._timeout_s, self._pid, self.why = peer_timeout_s, peer(sock)[0], ""
        self._last_sign = float("inf")

    def sign_of_life(self, now: float) -> None:
        self._last_sign = now

    def look(self, now: float, slept_s: float = 0.0) -> None:
        """Find out about :attr:`why`; this process itself has not run for ``slept_s`` before."""
        if slept_s > self._timeout_s / 2:  # nor may rank 0: the silence counts from here
            self._last_sign = max(self._last_sign, now)
        if self._pid and has_ended(self._pid):
            self.why = _ENDED.format(self._pid)
        elif now - self._last_sign > self._timeout_s:
            self.why = _why_silent(self._pid or None, self._timeout_s)


def _why_silent(pid: int | None, timeout_s: float) -> str:
    """Why a rank counts as lost that has said nothing for so long; empty if it does not. No process: another host's."""
    if pid is None:
        return f"no sign of life for {timeout_s:g} s"
    return f"its process {pid} has been stopped for {timeout_s:g} s (Ctrl-Z, SIGSTOP)" if suspended(pid) else ""
