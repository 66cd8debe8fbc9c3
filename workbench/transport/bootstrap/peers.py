"""Which of the ranks' processes on this machine have ended? Looked at while ``init()`` waits for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import psutil

from workbench.config import Launch
from workbench.errors import PeerLostError
from workbench.machine import has_ended, machine

_LOOK_EVERY_S = 0.25
# What runs a rank's supervisor: its own file, or under MPICH's gforker the one that unpacks it.
_KEEPERS = tuple(
    os.path.join("workbench", "launch", *each) for each in (("ranks", "supervisor.py"), ("start", "gforker.py"))
)
_STARTED_S = 5.0  # so old a keeper has started its rank
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
        self._look_at = now + _LOOK_EVERY_S
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
    cannot be seen (a container of one's own around each rank) nobody is missed. What has started a rank for us may stay
    in its place: the keeper of ``workbench run``, without a child then, and a notebook's stand-in, which sleeps.

    Args:
        launch: how this process was started.
        parents: this process's ancestors, the nearest first.
    """

    def __init__(
        self, launch: Launch, parents: Callable[[], list[psutil.Process]] = lambda: psutil.Process().parents()
    ) -> None:
        self._name, self._launch = _RANK_NAMES.get(launch.launcher, ""), launch
        self._launcher = self._find(parents) if self._name and launch.size > 1 else None
        self._most, self._kept = 0, set[int]()
        if self._launcher and launch.local_size > 1:
            self._most = launch.local_size
        elif self._launcher and self._launcher.name().endswith("gforker"):  # it knows of one machine only
            self._most = launch.size

    def ended(self) -> str:
        """Who of them has ended, or "". Once there were as many as there are ranks here, one fewer is one lost."""
        if self._launcher is None:
            return ""
        try:
            ranks = [rank for child in self._launcher.children() if (rank := self._rank(child)) is not None]
        except psutil.Error:
            return ""
        self._most = max(self._most, len(ranks))
        if len(ranks) >= self._most:
            return ""
        missing = sorted(set(range(self._launch.size)) - set(ranks))
        return f"rank {missing[0]}" if self._most == self._launch.size and len(missing) == 1 else "a rank"

    def _find(self, parents: Callable[[], list[psutil.Process]]) -> psutil.Process | None:
        try:
            return next((each for each in parents() if self._name not in each.environ()), None)
        except psutil.Error:
            return None

    def _rank(self, process: psutil.Process) -> int | None:
        try:
            if process.name() == "sleep" or self._is_left_alone(process) or has_ended(process.pid):
                return None
            return int(process.environ()[self._name])
        except (psutil.Error, KeyError, ValueError, OSError):
            return None

    def _is_left_alone(self, process: psutil.Process) -> bool:
        """Is it a keeper whose rank has ended? One without a child may be about to start it."""
        if not any(word.endswith(_KEEPERS) for word in process.cmdline()):
            return False
        if process.children():
            self._kept.add(process.pid)
            return False
        return process.pid in self._kept or time.time() - process.create_time() > _STARTED_S
