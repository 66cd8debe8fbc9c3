"""The ranks of a job on this machine alone, and what :mod:`workbench.launch.start.run` needs of any job's ranks."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from workbench import config
from workbench.launch.ranks import files
from workbench.launch.ranks.events import LauncherEvent, RankEnded, RankPipes, Signals, Started
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start import mpi
from workbench.launch.start.binding import bind
from workbench.launch.start.starters import JobSpec, processes

_LEAVE_S = 0.1  # deadline for mpiexec to end after its ranks: MPICH's sometimes does not notice for 1 or 2 s


class Ranks(Protocol):
    """The ranks of a job, wherever they are."""

    def start(self, log: Callable[[str], None], verbose: bool) -> None:
        """Start them all.

        Args:
            log: gets the launcher's own messages.
            verbose: report what is started.

        Raises:
            LaunchError: it cannot be.
        """

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent]:
        """The next events; none after ``timeout_s`` without one."""

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """Send a signal to these ranks and all that they have started."""

    def ended(self) -> dict[str, int]:
        """What started the ranks and has ended, such as mpiexec, with its exit code."""

    def report(self) -> str:
        """Each command that was started, and the last lines that it wrote."""

    def stop(self, take: Callable[[Iterable[LauncherEvent]], None]) -> dict[str, bytes]:
        """Kill every process and delete every file.

        Args:
            take: gets the rest of what the ranks have written.

        Returns:
            By name, the contents of the folder of the task's files.
        """


class RanksHere:
    """The ranks of this machine, started by mpiexec or one by one.

    Args:
        task: what to start.
        signals: of this process; they come as events.
    """

    def __init__(self, task: JobSpec, signals: Signals) -> None:
        self._task = task
        # The cores are looked at before the first process of the job, which would be taken for another's.
        self._binding = bind(task.n, config.settings(task.env).bind)
        self._processes = ProcessTree(task.env)
        self._pipes = RankPipes(self._processes.folder, range(task.n), signals)
        self._pids: dict[int, int] = {}
        self._running = set(range(task.n))
        self._failed = False

    def start(self, log: Callable[[str], None], verbose: bool) -> None:
        """Start mpiexec, or the supervisors."""
        folder = self._processes.folder
        self._processes.env |= mpi.session_folder(str(folder)) | self._binding.env
        if verbose or self._binding.notable:
            log(self._binding.line())
        files.write(folder, self._task.files)
        common = dict(self._processes.env)
        for process in processes(self._task, folder, log):
            if verbose:
                log(f"starting {shlex.join(process.command)}")
            self._processes.env = common | process.env
            self._processes.start(process.name, process.command)

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent]:
        for event in self._pipes.wait(timeout_s):
            match event:
                case Started(rank, pid):
                    self._pids[rank] = pid
                    self._processes.follow([pid])
                case RankEnded(rank, code):
                    self._running.discard(rank)
                    self._failed |= bool(code)
                    if code:
                        self._note_shared_memory()
            yield event

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """To their sessions: a shell as rank does not forward signals."""
        self._note_shared_memory()
        for rank in ranks:
            with contextlib.suppress(KeyError, ProcessLookupError):
                os.killpg(self._pids[rank], number)

    def ended(self) -> dict[str, int]:
        return self._processes.codes()

    def report(self) -> str:
        return self._processes.report()

    def stop(self, take: Callable[[Iterable[LauncherEvent]], None]) -> dict[str, bytes]:
        """Let mpiexec and the supervisors leave by themselves where all is well; then kill what is left."""
        try:
            self._pipes.release_supervisors()
            until = time.monotonic() + _LEAVE_S
            while not (self._running or self._failed or self.ended()) and time.monotonic() < until:
                take(self.wait(0.005))
            left = files.read(self._processes.folder)
        finally:
            try:
                self._processes.stop()
            finally:
                take(self._pipes.drain())
                self._pipes.close()
        return left

    def _note_shared_memory(self) -> None:
        """Record the shared memory of ranks that are about to die without MPI_Finalize, to remove it later."""
        self._processes.follow(self._pids[rank] for rank in self._running & self._pids.keys())
