"""The workers of an elastic job on this machine: started one by one, and heard at the registry."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from workbench import config
from workbench.common.messages import Message
from workbench.launch.ranks import files, supervisor
from workbench.launch.ranks.events import LauncherEvent, RankEnded, RankPipes, Signals, Started
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start.binding import Binding, bind
from workbench.launch.start.hosts import is_here
from workbench.launch.start.starters import JobSpec
from workbench.launch.workers.registry import NAME, WorkerRegistry


@dataclass(frozen=True)
class WorkerMessage:
    """A worker has said something to the launcher."""

    worker: int
    message: Message


@dataclass(frozen=True)
class Placement:
    """Where a worker runs: the ``slot``-th one of ``host``, and the ``index``-th of all slots here.

    Args:
        number, total: the same among the slots of all hosts, and how many there are.
        beside: how many the host has.
    """

    host: str
    slot: int
    index: int = 0
    number: int = 0
    total: int = 1
    beside: int = 1


class Workers(Protocol):
    """The workers of an elastic job, wherever they are. Numbers of ranks in events are workers'."""

    files: dict[str, bytes]
    """By name, the contents of the folders of the task's files, once they have been stopped."""

    def takes(self, host: str) -> bool:
        """May workers be started on this host, which was found while the job runs?"""

    def start(self, worker: int, placement: Placement) -> None: ...

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent | WorkerMessage]:
        """What happens next; nothing after ``timeout_s``."""

    def send(self, worker: int, message: Message) -> None: ...

    def silent_for(self, worker: int) -> float:
        """For how many seconds a worker has said nothing."""

    def signal(self, workers: Iterable[int], number: int) -> None:
        """Send a signal to workers and all that they have started."""

    def stop(self) -> list[LauncherEvent | WorkerMessage]:
        """Kill every process and delete every file; returns the rest of what the workers wrote."""


class WorkersHere:
    """Those of this machine.

    Args:
        task: each worker's command and environment; ``n``: for so many the cores are shared out.
        signals: of this process; they come as events.
        tag, folder_name: see :class:`~workbench.launch.ranks.process_tree.ProcessTree`.

    Attributes:
        binding_line: which cores they are bound to.
    """

    def __init__(self, task: JobSpec, signals: Signals | None = None, tag: str = "", folder_name: str = "") -> None:
        self._task = task
        self._binding = bind(max(1, task.n), config.settings(task.env).bind)
        self.binding_line = self._binding.line()
        self._processes = ProcessTree(task.env, tag, folder_name)
        folder = self._processes.folder
        files.write(folder, task.files)
        self._command, self.files = files.command(folder, task.command), dict[str, bytes]()
        self._pipes = RankPipes(folder, (), signals)
        self._registry = WorkerRegistry(str(folder / NAME))
        self._common = dict(self._processes.env) | {"WORKBENCH_MEMBERSHIP": self._registry.path}
        self._pids: dict[int, int] = {}
        self._waiting = selectors.DefaultSelector()
        for source in (self._pipes, self._registry):
            self._waiting.register(source, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Readable when there is an event."""
        return self._waiting.fileno()

    def takes(self, host: str) -> bool:
        """Another machine could not reach the ranks that are here: they use addresses of this machine alone."""
        return is_here(host)

    def start(self, worker: int, placement: Placement) -> None:
        """See :class:`Workers`."""
        self._pipes.add(worker)
        # Names of this machine are one host.
        here = replace(placement, slot=placement.index, beside=placement.total)
        folder = str(self._processes.folder)
        self._processes.env = (
            self._common | worker_variables(worker, here) | placed(self._binding, worker, placement.index)
        )
        words = [sys.executable, "-I", "-S", supervisor.__file__, folder, *self._command]
        self._processes.start(f"worker {worker}", words)

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent | WorkerMessage]:
        """See :class:`Workers`."""
        ready = [key.fileobj for key, _ in self._waiting.select(timeout_s)]
        if self._registry in ready:
            yield from (WorkerMessage(worker, message) for worker, message in self._registry.receive())
        if self._pipes in ready:
            for event in self._pipes.wait(0.0):
                self._note(event)
                yield event
        if not ready:
            yield from self._without_supervisor()

    def _without_supervisor(self) -> Iterator[LauncherEvent]:
        """Workers whose supervisor was killed: nobody would say how they end, so they are ended."""
        for name in self._processes.ended():
            worker = int(name.split()[-1])
            self.signal([worker], signal.SIGKILL)
            ended = RankEnded(worker, -signal.SIGKILL)
            self._note(ended)
            yield ended

    def _note(self, event: LauncherEvent) -> None:
        match event:
            case Started(worker, pid):
                self._pids[worker] = pid
                self._processes.follow([pid])
            case RankEnded(worker, _):
                self._pids.pop(worker, None)
                self._processes.end(f"worker {worker}")

    def send(self, worker: int, message: Message) -> None:
        """See :class:`Workers`."""
        self._registry.send(worker, message)

    def silent_for(self, worker: int) -> float:
        """See :class:`Workers`."""
        return self._registry.silent_for(worker)

    def signal(self, workers: Iterable[int], number: int) -> None:
        """See :class:`Workers`."""
        for worker in workers:
            with contextlib.suppress(KeyError, ProcessLookupError):
                os.killpg(self._pids[worker], number)
                if number == signal.SIGKILL:
                    os.killpg(self._pids[worker], signal.SIGCONT)

    def stop(self) -> list[LauncherEvent | WorkerMessage]:
        """See :class:`Workers`."""
        try:
            self._pipes.release_supervisors()
            self._waiting.close()
            self._registry.close()
            self.files = files.read(self._processes.folder)
        finally:
            try:
                self._processes.stop()
            finally:
                rest: list[LauncherEvent | WorkerMessage] = list(self._pipes.drain())
                self._pipes.close()
        return rest


def worker_variables(worker: int, placement: Placement) -> dict[str, str]:
    """What a worker is told about itself; its rank and the number of ranks it hears in ``init()``.

    Until then scripts find in Horovod's variables what is likely: that there is a rank for each slot.
    """
    return {
        "WORKBENCH_WORKER": str(worker),
        "LOCAL_RANK": str(placement.slot),  # by which scripts choose their GPU
        "HOROVOD_RANK": str(placement.number),
        "HOROVOD_SIZE": str(placement.total),
        "HOROVOD_LOCAL_RANK": str(placement.slot),
        "HOROVOD_LOCAL_SIZE": str(placement.beside),
        "HOROVOD_HOSTNAME": placement.host,
        "HOROVOD_ELASTIC": "1",
    }


def placed(binding: Binding, worker: int, index: int) -> dict[str, str]:
    """The binding's variables, in which the share of a slot stands where its worker looks it up.

    Example:
        >>> placed(Binding(((0, 1), (2, 3))), worker=3, index=1)
        {'WORKBENCH_CORES': '0,1;2,3;;2,3'}
    """
    env = dict(binding.env)
    if supervisor.CORES in env and index >= len(binding.shares):
        del env[supervisor.CORES]  # there were fewer slots at the start
    elif supervisor.CORES in env:
        shares = env[supervisor.CORES].split(";")
        mine, shares = shares[index], shares + [""] * (worker + 1 - len(shares))
        if worker < len(binding.shares):
            shares[index] = shares[worker]
        shares[worker] = mine
        env[supervisor.CORES] = ";".join(shares)
    return env


__all__ = ["Placement", "WorkerMessage", "Workers", "WorkersHere", "placed", "worker_variables"]
