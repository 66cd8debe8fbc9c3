"""Horovod in an environment of its own: the same worker there and here, in turns, round by round.

``HOROVOD_PYTHON`` names its Python, which needs numpy, torch and horovod; ``HOROVOD_MPIRUN`` its mpirun, by default the
one beside that Python. ::

    driver ─┬─ our mpiexec ── worker.py --turns …           a round ──►       ──► a round ──►
            └─ their mpirun ─ worker.py --turns … --theirs            a round ──►        ──► a round

Ranks of Horovod that wait for nothing keep cores busy. So theirs are stopped (SIGSTOP) in our turn; ours sleep.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import children
import turns
from report import Result

from workbench.errors import LaunchError
from workbench.launch.start import mpi

SECTIONS = ("collectives", "verbs", "many", "training")
PEER = "Horovod"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LOOK_S = 0.2


@dataclass(frozen=True)
class Place:
    """Where Horovod is.

    Args:
        python: of its environment.
        mpirun: its launcher.
    """

    python: str
    mpirun: str

    def command(self, ranks: int) -> list[str]:
        """What starts ranks there; the script follows.

        Raises:
            LaunchError: its mpirun cannot be run.
        """
        flags = mpi.flags(mpi.mpiexec_vendor(self.mpirun), root=os.geteuid() == 0)
        return [self.mpirun, "-n", str(ranks), *flags, self.python]

    def env(self) -> dict[str, str]:
        """This process's, without what belongs to this Python."""
        mine = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        folder = str(Path(self.python).parent)
        return mine | dict.fromkeys(_THREADS, "1") | {"PATH": os.pathsep.join([folder, mine.get("PATH", "")])}


def place(env: Mapping[str, str]) -> Place | None:
    """What the variables name, or None.

    Raises:
        LaunchError: there is no such Python, or no mpirun with it.
    """
    python = env.get("HOROVOD_PYTHON", "")
    if not python:
        return None
    if not shutil.which(python):
        raise LaunchError(f"HOROVOD_PYTHON={python}: there is no such program.")
    beside = [shutil.which(name, path=str(Path(python).parent)) for name in ("mpirun", "mpiexec")]
    mpirun = next(filter(None, [env.get("HOROVOD_MPIRUN"), *beside]), None)
    if mpirun is None or not shutil.which(mpirun):
        raise LaunchError(f"There is no mpirun beside {python}: name it with HOROVOD_MPIRUN.")
    return Place(python, mpirun)


@dataclass
class Side:
    """One of the two jobs, as the driver sees it.

    Args:
        job: its processes.
        server: where its ranks connect.
        ranks: how many.
        stops: is it stopped while it waits?
    """

    job: children.Job
    server: socket.socket
    ranks: int
    stops: bool = False
    _lines: dict[socket.socket, bytes] = field(default_factory=dict)
    _pids: set[int] = field(default_factory=set)
    _ready: int = 0
    _gone: int = 0

    def over(self) -> bool:
        """Has it ended, or one of its ranks?"""
        return self._gone > 0 or self.job.process.poll() is not None

    def wait(self, until: float) -> None:
        """Return when all ranks are ready for their next turn, the job is over, or the time is up."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.server, selectors.EVENT_READ)
            for line in self._lines:
                waiting.register(line, selectors.EVENT_READ)
            while self._ready < self.ranks and not self.over() and time.monotonic() < until:
                for key, _ in waiting.select(_LOOK_S):
                    if key.fileobj is self.server:
                        line = self.server.accept()[0]
                        self._lines[line] = b""
                        waiting.register(line, selectors.EVENT_READ)
                    else:
                        self._hear(key.fileobj)  # type: ignore[arg-type]
        if self.stops:
            self._signal(signal.SIGSTOP)

    def _hear(self, line: socket.socket) -> None:
        data = line.recv(4096)
        self._gone += not data
        *said, self._lines[line] = (self._lines[line] + data).split(b"\n")
        for each in said:
            if each == b"ready":
                self._ready += 1
            else:
                self._pids.add(json.loads(each)["pid"])

    def go(self) -> None:
        """Its turn."""
        if self.stops:
            self._signal(signal.SIGCONT)
        self._ready = 0
        for line in self._lines:
            with suppress(OSError):
                line.sendall(b"!")

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def run(where: Place, ranks: int, script: Path, words: Sequence[str], deadline_s: float) -> tuple[str, str]:
    """Run a worker in both environments, in turns.

    Returns:
        What our ranks printed, and what theirs did.

    Raises:
        children.ChildError: ours failed; or theirs, see :class:`TheirsFailed`.
    """
    until = time.monotonic() + deadline_s
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder, ExitStack() as stack:
        shared = [str(script), *words, turns.TURNS, folder]
        command = [*mpi.command(ranks), sys.executable, *shared]
        ours = _side(stack, Path(folder) / turns.OURS_SOCKET, command, mpi.environment(1), script.name, ranks)
        command = [*where.command(ranks), *shared, turns.THEIRS]
        theirs = _side(stack, Path(folder) / turns.THEIR_SOCKET, command, where.env(), script.name, ranks)
        theirs.stops = True
        alternate([ours, theirs], until)
        said = children.finish(ours.job, until - time.monotonic())
        try:
            return said, children.finish(theirs.job, until - time.monotonic())
        except children.ChildError as error:
            return said, json.dumps({"failed": str(error)})


def _side(stack: ExitStack, path: Path, command: list[str], env: dict[str, str], name: str, ranks: int) -> Side:
    server = stack.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(path))
    server.listen(ranks)
    job = children.start(command, env, f"{name} with {ranks} ranks")
    stack.callback(job.close)
    return Side(job, server, ranks)


def alternate(sides: Sequence[Side], until: float) -> None:
    """Let each have its turn after the other, until both are over. Who is over does not hold up the other."""
    for side in sides:
        side.wait(until)
    while not all(side.over() for side in sides) and time.monotonic() < until:
        for side in sides:
            if not side.over():
                side.go()
                side.wait(until)
    for side in sides:
        side.go()  # ranks that are still there have only to leave


def merged(ours: Result, theirs: Mapping[str, Any]) -> Result:
    """Our result with Horovod's times in each case, or with the reason why they are not there."""
    problem = str(theirs.get("failed", "")).strip()
    if not problem and [_measured(case) for case in theirs["cases"]] != [_measured(case) for case in ours["cases"]]:
        problem = "it did not measure the same cases"
    if problem:
        why = f"it failed in its own environment: {problem.splitlines()[-1]}"
        return ours | {"absent": ours["absent"] | {PEER: why}}
    cases = []
    for mine, other in zip(ours["cases"], theirs["cases"], strict=True):
        # Each side has chosen how many steps fill a round: the time of as many images as ours.
        factor = mine["images"] / other["images"] if other["images"] else 1.0
        times = {name: [factor * each for each in values] for name, values in other["seconds"].items()}
        cases.append(mine | {"seconds": mine["seconds"] | times})
    return ours | {"cases": cases, "elsewhere": theirs["library"]}


def _measured(case: Mapping[str, Any]) -> tuple[object, int]:
    return case["title"], len(next(iter(case["seconds"].values())))


__all__ = ["PEER", "SECTIONS", "Place", "Side", "alternate", "merged", "place", "run"]
