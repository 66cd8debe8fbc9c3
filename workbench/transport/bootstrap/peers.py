"""Which of the ranks' processes on this machine have ended? Looked at while ``init()`` waits for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.config import Launch
from workbench.errors import PeerLostError
from workbench.machine import has_ended, machine, process_state
from workbench.transport.bootstrap.ancestors import ancestors

try:
    import psutil
except ImportError:  # a browser, which has no other processes
    psutil = None

_LOOK_EVERY_S = 0.25
_FEW = 16  # of more ranks each looks less often, so that all together do not keep the machine busy
# The names of processes that stay in the place of a rank that has ended: the supervisor of ``workbench run``, which
# calls itself so then, and a notebook's stand-in, which sleeps.
_ENDED = ("rank-has-ended", "sleep")
_RANK_NAMES = {"mpich": "PMI_RANK", "openmpi": "OMPI_COMM_WORLD_RANK"}


def namespace(kind: str) -> str:
    """Equal for two processes of a machine that see the same ``pid`` numbers, or the same ``net`` addresses."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # a system without them
        return ""


class Peers:
    """The other ranks' processes, as far as they are on this machine.

    Args:
        launch: how this process was started.
    """

    def __init__(self, launch: Launch | None = None) -> None:
        self._pids: dict[int, int] = {}
        self._siblings = Siblings(launch) if launch else None
        self._look_at = time.monotonic() + _LOOK_EVERY_S

    def know(self, rank: int, processes: Sequence[tuple[str, str, int] | None]) -> None:
        """Take note of those on this machine. Until they are known, the launcher's children are counted.

        Args:
            rank: this one.
            processes: by rank: machine, namespace of process ids, and process id; None of one that has not come.
        """
        here = (machine(), namespace("pid"))
        found = {each: process for each, process in enumerate(processes) if process and process[:2] == here}
        self._pids = {each: pid for each, (*_, pid) in found.items() if each != rank}
        self._siblings = None

    def look(self) -> None:
        """Called amid a wait, as often as one likes.

        Raises:
            PeerLostError: a rank has ended.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        among = max(len(self._pids), self._siblings.count if self._siblings else 0)
        self._look_at = now + _LOOK_EVERY_S * max(1.0, among / _FEW)
        for rank, pid in self._pids.items():
            if has_ended(pid):
                raise lost(f"rank {rank}", f"its process {pid} has ended")
        if self._siblings and (who := self._siblings.ended()):
            raise lost(who, "its process has ended")


def lost(who: str, why: str) -> PeerLostError:
    """The error that ends an ``init()`` whose ranks cannot all come any more."""
    return PeerLostError(
        f"init(): {who} was lost: {why} (killed, out of memory, or crashed). Start the job again; in a notebook: "
        "engines.rescue()."
    )


class Siblings:
    """The processes that mpiexec has started on this machine, before they have told each other their numbers.

    They are children of one process, which is this one's nearest ancestor without a rank in its environment. Where it
    cannot be seen (a container of one's own around each rank) nobody is missed. One that has not been started yet, or
    not come far, is late and not lost: lost is who was seen and has ended, or left a process in its place that says so.

    Args:
        launch: how this process was started.
        parents: this process's ancestors, the nearest first.
    """

    def __init__(self, launch: Launch, parents: Callable[[], list[psutil.Process]] = ancestors) -> None:
        self._name = _RANK_NAMES.get(launch.launcher, "")
        self._launcher = self._find(parents) if self._name and launch.size > 1 else 0
        self._ranks: dict[int, int] = {}  # by process

    @property
    def count(self) -> int:
        return len(self._ranks)

    def ended(self) -> str:
        """Who of them has ended, or ""."""
        if not self._launcher or has_ended(self._launcher):
            return ""
        for pid in set(children(self._launcher)) - self._ranks.keys():
            if (rank := self._rank(pid)) is not None:
                self._ranks[pid] = rank
        gone = sorted(rank for pid, rank in self._ranks.items() if self._has_left(pid))
        if len(gone) > 1:  # one of them may have ended because of the other
            return "a rank"
        return f"rank {gone[0]}" if gone else ""

    def _find(self, parents: Callable[[], list[psutil.Process]]) -> int:
        try:
            return next((each.pid for each in parents() if self._name not in each.environ()), 0)
        except psutil.Error:
            return 0

    def _rank(self, pid: int) -> int | None:
        try:
            return int(psutil.Process(pid).environ()[self._name])
        except (psutil.Error, KeyError, ValueError, OSError):
            return None

    def _has_left(self, pid: int) -> bool:
        found = process_state(pid)
        if found is None:  # it has ended, or the system has no /proc
            return has_ended(pid)
        name, _, parent = found
        return parent != self._launcher or name in _ENDED or has_ended(pid)


def children(pid: int) -> list[int]:
    """The processes that one has started. A list in the moment that one ends may lack others."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:  # a kernel that does not list them
        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []
