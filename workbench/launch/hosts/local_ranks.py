"""The ranks of a job on the agent's own host."""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
from collections.abc import Mapping
from typing import Any

from workbench.errors import LaunchError
from workbench.launch.ranks import files, supervisor
from workbench.launch.ranks.events import LauncherEvent, RankEnded, RankPipes, Started, Stopped
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start import shared_memory
from workbench.launch.start.binding import bind
from workbench.launch.start.starters import launcher_variables
from workbench.launch.workers.environment import environment_here
from workbench.machine import why_stopped


class LocalRanks:
    """This host's ranks, from their start to their end.

    Args:
        about: ``tag``, ``folder``, ``ranks`` (the numbers of this host's), ``size`` (of the job), ``host`` and
            ``hosts`` (its number among how many), ``starter``, ``command``, ``env``, ``threads`` (does ``env`` say how
            many?), ``bind``, ``gpus``, ``slurm`` (:class:`~workbench.launch.slurm.allocation.JobGpus`), ``files`` (name
            and length of each).
        data: those files' contents, one behind the other.

    Attributes:
        pipes: what the ranks write.
        binding_line: which cores they are bound to.
        files: by name, the contents of the job's folder of files, once the ranks have been stopped.
    """

    leave_by_themselves = False

    def __init__(self, about: Mapping[str, Any], data: bytes) -> None:
        self._about, self._ranks = about, [int(rank) for rank in about["ranks"]]
        self._pids: dict[int, int] = {}
        self._stopped: dict[int, str] = {}  # why those ranks do not run
        self._running = set(self._ranks)
        self.files: dict[str, bytes] = {}
        n = len(self._ranks)
        self._binding = bind(n, about["bind"])
        self.binding_line = self._binding.line()
        # The hosts may share a folder, and this host is the launcher's, too, whose processes have a tag as well.
        mark = f".{self._ranks[0]}"
        env = environment_here(about, n) | self._local_binding()
        self._processes = ProcessTree(env, about["tag"] + mark, about["folder"] + mark)
        folder = self._processes.folder
        self.pipes = RankPipes(folder, self._ranks)
        files.write(folder, files.unlisted(about["files"], data))
        command = files.command(folder, about["command"])
        if about["starter"] == "mpi":
            if why := shared_memory.problem(n):
                raise LaunchError(why)
            places = {"HOROVOD_CROSS_RANK": about["host"], "HOROVOD_CROSS_SIZE": about["hosts"]}
            self._processes.env |= {name: str(number) for name, number in places.items()}
            (folder / supervisor.JOB).write_bytes(marshal.dumps([command, self._processes.env]))
        else:
            self._start(command)

    def _local_binding(self) -> dict[str, str]:
        """By rank of the whole job, as the supervisors look it up: nothing for those of other hosts."""
        env = self._binding.env
        if supervisor.CORES in env:
            env[supervisor.CORES] = ";" * self._ranks[0] + env[supervisor.CORES]
        return env

    def _start(self, command: list[str]) -> None:
        common = dict(self._processes.env)
        for local, rank in enumerate(self._ranks):
            size, places = self._about["size"], (self._about["host"], self._about["hosts"])
            self._processes.env = common | launcher_variables(rank, size, local, len(self._ranks), *places)
            words = [sys.executable, "-I", "-S", supervisor.__file__, str(self._processes.folder), *command]
            self._processes.start(f"rank {rank}", words)
        self._processes.env = common

    def events(self) -> list[LauncherEvent]:
        """What has happened since the last call."""
        found = list(self.pipes.wait(0.0))
        for event in found:
            match event:
                case Started(rank, pid):
                    self._pids[rank] = pid
                    self._processes.follow([pid])
                case RankEnded(rank, code):
                    self._running.discard(rank)
                    if code:
                        self._note_shared_memory()
        return found

    def stopped(self) -> list[LauncherEvent]:
        """Whose process was stopped since the last call, and whose goes on."""
        pids = {rank: pid for rank, pid in self._pids.items() if rank in self._running}
        now = {rank: why for rank, pid in pids.items() if (why := why_stopped(pid))}
        changed = [rank for rank in pids if now.get(rank) != self._stopped.get(rank)]
        self._stopped = now
        return [Stopped(rank, now.get(rank, "")) for rank in changed]

    def lost(self) -> str:
        """What has ended before its rank; "" while all is well."""
        for name in self._processes.ended():
            if int(name.split()[-1]) in self._running:
                return f"the supervisor of {name} ended before it.\n{self._processes.report()}"
        return ""

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank and all that it has started."""
        self._note_shared_memory()
        if rank in self._running and rank in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pids[rank], number)  # its session: a shell as rank does not forward signals

    def release(self) -> None:
        """Let the supervisors end: all ranks of the job have ended."""
        self.pipes.release_supervisors()

    def stop(self) -> list[LauncherEvent]:
        """Kill what still runs and delete every file. Returns what the ranks had written meanwhile."""
        self.files = self.files or files.read(self._processes.folder)
        self._note_shared_memory()
        self._processes.stop()
        rest = list(self.pipes.drain())
        self.pipes.close()
        return rest

    def _note_shared_memory(self) -> None:
        """Record the shared memory of ranks that are about to die without MPI_Finalize, to remove it later."""
        if not self._processes.stopped():
            self._processes.follow(self._pids[rank] for rank in self._running & self._pids.keys())


__all__ = ["LocalRanks"]
