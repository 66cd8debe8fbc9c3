"""The workers of an elastic job on the agent's own host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.common.messages import Message
from workbench.launch.ranks import files
from workbench.launch.ranks.events import LauncherEvent
from workbench.launch.start.starters import JobSpec
from workbench.launch.workers.environment import environment_here
from workbench.launch.workers.workers_here import Placement, WorkerMessage, WorkersHere


class LocalWorkers:
    """This host's workers, for its agent; the counterpart of :class:`workbench.launch.hosts.local_ranks.LocalRanks`.

    Args:
        about: ``tag``, ``folder``, ``host`` (its name), ``slots`` (for so many the cores are shared out), ``command``,
            ``env``, ``threads`` (does ``env`` say how many?), ``gpus``, ``slurm``, ``files``: as for the ranks.
        data: those files' contents, one behind the other.

    Attributes:
        pipes: readable when there are events.
        binding_line: which cores they are bound to.
    """

    leave_by_themselves = True

    def __init__(self, about: Mapping[str, Any], data: bytes) -> None:
        slots = int(about["slots"])
        env = environment_here(about, slots)
        task = JobSpec(slots, about["command"], env, files=files.unlisted(about["files"], data))
        self.pipes = WorkersHere(task, None, about["tag"], about["folder"])
        self.binding_line = self.pipes.binding_line
        self._host = str(about["host"])

    @property
    def files(self) -> dict[str, bytes]:
        """What the workers have left, once they have been stopped."""
        return self.pipes.files

    def start(self, worker: int, slot: int, number: int, total: int, beside: int) -> None:
        """Start one more, at a :class:`~workbench.launch.workers.workers_here.Placement` of this host."""
        self.pipes.start(worker, Placement(self._host, slot, slot, number, total, beside))

    def send(self, message: Message) -> None:
        """Pass on what the launcher tells a worker."""
        fields = message.fields
        self.pipes.send(fields["worker"], Message(fields["what"], fields["fields"], message.data))

    def events(self) -> list[LauncherEvent | WorkerMessage]:
        """What has happened since the last call."""
        return list(self.pipes.wait(0.0))

    def stopped(self) -> list[LauncherEvent]:
        """Nothing: a worker that is stopped does not answer the launcher, see ``elastic/silence.py``."""
        return []

    def lost(self) -> str:
        """A worker whose supervisor ended first is found by the end of its connection."""
        return ""

    def signal(self, rank: int, number: int) -> None:
        """To a worker and all that it has started."""
        self.pipes.signal([rank], number)

    def release(self) -> None:
        """Each supervisor has been ended with its worker."""

    def stop(self) -> list[LauncherEvent | WorkerMessage]:
        """Kill what still runs and delete every file. Returns what the workers had written meanwhile."""
        return self.pipes.stop()


__all__ = ["LocalWorkers"]
