"""The ranks of a job on this machine: started together or one by one, heard, signalled, ended.

::

    LocalRanks ─┬─ supervisor 0 ── the command      or      LocalRanks ── mpiexec ─┬─ supervisor 0 ── the command
                └─ supervisor 1 ── the command                                     └─ supervisor 1 ── the command

The launcher has one for a job on its own machine, and the agent of each host has one for its part of a job. Ranks of a
fixed job start together. Those of an elastic job, its *workers*, start one by one and register with the launcher.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import selectors
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from workbench import config
from workbench.common.messages import Message
from workbench.errors import LaunchError
from workbench.launch.ranks import files, supervisor
from workbench.launch.ranks.events import LauncherEvent, RankEnded, RankPipes, Signals, Started, Stopped, WorkerMessage
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.ranks.worker_registry import NAME, WorkerRegistry
from workbench.launch.start import mpi, shared_memory
from workbench.launch.start.binding import bind, placed
from workbench.launch.start.starters import (
    JobSpec,
    Placement,
    launcher_variables,
    mpiexec,
    rendezvous,
    torch_variables,
    worker_variables,
)
from workbench.machine import why_stopped

_LOOK_S = 0.25
_LEAVE_S = 0.1  # deadline for mpiexec to end after its ranks: MPICH's sometimes does not notice for 1 or 2 s


class Ranks(Protocol):
    """The ranks of a job, wherever they are."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """By name, the contents of the folders of the task's files, once the ranks have been stopped."""

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent]:
        """The next events; none after ``timeout_s`` without one."""

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """Send a signal to these ranks and all that they have started."""

    def stop(self) -> list[LauncherEvent]:
        """Kill every process and delete every file. Returns the rest of what the ranks have written."""


class FixedRanks(Ranks, Protocol):
    """Those of a job that has as many ranks at its end as at its start."""

    def start_all(self, log: Callable[[str], None], verbose: bool) -> None:
        """Start them all.

        Args:
            log: gets the launcher's own messages.
            verbose: report what is started.

        Raises:
            LaunchError: it cannot be.
        """

    def ended(self) -> dict[str, int]:
        """What has ended before the ranks that it has started, with its exit code: mpiexec, or a supervisor."""

    def report(self) -> str:
        """Each command that was started, and the last lines that it wrote."""


class LocalRanks:
    """See the module, :class:`Ranks` and :class:`~workbench.launch.elastic.workers.Workers`.

    Args:
        task: what to start; ``n``: for so many the cores are shared out.
        signals: of this process; they come as events.
        elastic: ranks are workers, which may come and go.
        tag, folder: see :class:`~workbench.launch.ranks.process_tree.ProcessTree`.

    Attributes:
        binding: which cores they are bound to.
        elastic: see above.
        files: see :class:`Ranks`.
    """

    def __init__(
        self, task: JobSpec, signals: Signals | None = None, elastic: bool = False, tag: str = "", folder: str = ""
    ) -> None:
        self._task, self.elastic, self.files = task, elastic, dict[str, bytes]()
        # The cores are looked at before the first process of the job, which would be taken for another's.
        self.binding = bind(max(1, task.n), config.settings(task.env).bind)
        self._processes = ProcessTree(task.env, tag, folder)
        self._folder = self._processes.folder
        try:
            files.write(self._folder, task.files)
        except OSError:  # a full disk: nobody could stop this yet
            self._processes.stop()
            raise
        self._command = files.command(self._folder, task.command)
        self._pipes = RankPipes(self._folder, (), signals)
        self._env = dict(self._processes.env)
        self._pids, self._running = dict[int, int](), set[int]()
        self._by_mpiexec = self._failed = False
        self._look_at = 0.0
        self._stopped: dict[int, str] = {}  # why those ranks do not run
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(self._pipes, selectors.EVENT_READ)
        self._registry: WorkerRegistry | None = None
        if elastic:
            self._registry = WorkerRegistry(str(self._folder / NAME))
            self._waiting.register(self._registry, selectors.EVENT_READ)

    def fileno(self) -> int:
        return self._waiting.fileno()

    # --- starts ---------------------------------------------------------------------------------------

    def start_all(self, log: Callable[[str], None], verbose: bool) -> None:
        """See :class:`FixedRanks`: by mpiexec, or one by one."""
        if verbose or self.binding.notable:
            log(self.binding.line())
        self._env |= mpi.session_folder(str(self._folder)) | torch_variables()
        if starter := mpiexec(self._task, log):
            command = [*starter, *self._supervised()]
            if verbose:
                log(f"starting {shlex.join(command)}")
            self._expect(range(self._task.n))
            self._processes.env = self._env | self.binding.env
            self._processes.start("mpiexec", command)
            self._by_mpiexec = True
            return
        self._env |= rendezvous(self._task, self._folder)
        if verbose:
            log(f"starting {self._task.n} times {shlex.join(self._supervised())}")
        self.start_share(range(self._task.n), self._task.n)

    def start_share(self, ranks: Sequence[int], size: int, host: int = 0, hosts: int = 1) -> None:
        """Start this machine's ranks of a fixed job of ``size``: it is the ``host``-th of ``hosts``."""
        for local, rank in enumerate(ranks):
            self._start(rank, local, launcher_variables(rank, size, local, len(ranks), host, hosts))

    def expect_from_mpi(self, ranks: Sequence[int], size: int, host: int, hosts: int) -> None:
        """The same where the launcher's mpiexec starts the supervisors: leave here what they need.

        Raises:
            LaunchError: the shared memory does not do for MPI.
        """
        if why := shared_memory.problem(len(ranks)):
            raise LaunchError(why)
        self._expect(ranks)
        env = self._env | {"HOROVOD_CROSS_RANK": str(host), "HOROVOD_CROSS_SIZE": str(hosts)} | self.binding.env
        if supervisor.CORES in env:  # by rank of the whole job: nothing for those of the hosts before
            env[supervisor.CORES] = ";" * ranks[0] + env[supervisor.CORES]
        (self._folder / supervisor.JOB).write_bytes(marshal.dumps([self._command, env]))

    def start(self, worker: int, placement: Placement) -> None:
        if self._registry is None:
            raise LaunchError("this host belongs to no elastic job.")
        membership = {"WORKBENCH_MEMBERSHIP": self._registry.path}
        self._start(worker, placement.index, worker_variables(worker, placement) | membership)

    def _start(self, rank: int, index: int, variables: dict[str, str]) -> None:
        self._expect([rank])
        self._processes.env = self._env | variables | placed(self.binding, rank, index)
        self._processes.start(f"rank {rank}", self._supervised())

    def _expect(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._pipes.add(rank)
            self._running.add(rank)

    def _supervised(self) -> list[str]:
        return [sys.executable, "-I", "-S", supervisor.__file__, str(self._folder), *self._command]

    # --- the run --------------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent]:
        ready = [key.fileobj for key, _ in self._waiting.select(timeout_s)]
        if self._registry and self._registry in ready:
            yield from (WorkerMessage(worker, message) for worker, message in self._registry.receive())
        if self._pipes in ready:
            for event in self._pipes.wait(0.0):
                self._note(event)
                yield event
        if self.elastic and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            yield from self._without_supervisor()

    def _note(self, event: LauncherEvent) -> None:
        match event:
            case Started(rank, pid):
                self._pids[rank] = pid
                self._processes.follow([pid])
            case RankEnded(rank, code):
                self._running.discard(rank)
                self._failed |= bool(code)
                if code:
                    self._note_shared_memory()
                if self.elastic:  # the job may outlive many of them
                    self._processes.end(f"rank {rank}")

    def _without_supervisor(self) -> Iterator[LauncherEvent]:
        """Workers whose supervisor was killed: nobody would say how they end, so they are ended."""
        for name in self.ended():
            rank = int(name.split()[-1])
            self.signal([rank], signal.SIGKILL)
            ended = RankEnded(rank, -signal.SIGKILL)
            self._note(ended)
            yield ended

    def stopped(self) -> list[Stopped]:
        """Whose process was stopped since the last call, and whose goes on."""
        pids = {rank: self._pids[rank] for rank in self._running & self._pids.keys()}
        now = {rank: why for rank, pid in pids.items() if (why := why_stopped(pid))}
        changed = [rank for rank in sorted(pids) if now.get(rank) != self._stopped.get(rank)]
        self._stopped = now
        return [Stopped(rank, now.get(rank, "")) for rank in changed]

    def send(self, worker: int, message: Message) -> None:
        if self._registry:
            self._registry.send(worker, message)

    def silent_for(self, worker: int) -> float:
        return self._registry.silent_for(worker) if self._registry else 0.0

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """To their sessions: a shell as rank does not forward signals. One that is stopped takes SIGKILL as well."""
        self._note_shared_memory()
        for rank in self._running & self._pids.keys() & set(ranks):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pids[rank], number)
                if number == signal.SIGKILL:
                    os.killpg(self._pids[rank], signal.SIGCONT)

    def ended(self) -> dict[str, int]:
        running = {"mpiexec", *(f"rank {rank}" for rank in self._running)}
        return {name: code for name, code in self._processes.codes().items() if name in running}

    def report(self) -> str:
        return self._processes.report()

    # --- the end --------------------------------------------------------------------------------------

    def stop(self) -> list[LauncherEvent]:
        """Let mpiexec leave by itself where all is well; then kill what is left."""
        rest: list[LauncherEvent] = []
        try:
            self._pipes.release_supervisors()
            until = time.monotonic() + _LEAVE_S
            well = self._by_mpiexec and not (self._running or self._failed)
            while well and not self.ended() and time.monotonic() < until:
                rest += self._pipes.wait(0.005)
            self.files = files.read(self._folder)
            self._note_shared_memory()
        finally:
            try:
                self._processes.stop()
            finally:
                rest += self._pipes.drain()
                self._pipes.close()
                self._waiting.close()
                if self._registry:
                    self._registry.close()
        return rest

    def _note_shared_memory(self) -> None:
        """Record the shared memory of ranks that are about to die without MPI_Finalize, to remove it later."""
        self._processes.follow(self._pids[rank] for rank in self._running & self._pids.keys())
