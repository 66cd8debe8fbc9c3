"""The engines of this machine: mpiexec starts them. And what a cluster needs of any engines, wherever they are."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import workbench.config
from workbench.cluster import engine_commands
from workbench.cluster.recovery import are
from workbench.common.text import count
from workbench.launch.forks.find import Forks
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.ranks.watchdog import runs
from workbench.launch.start import mpi
from workbench.launch.start.binding import Binding, bind
from workbench.launch.start.gpus import Gpu, Pins
from workbench.launch.start.starters import idle_hosts

_NOTICE = re.compile(r"\[KernelNanny\.(\d+)\] Notifying Hub that our parent has shut down")
Log = Callable[[str], None]


class Engines(Protocol):
    """Engines and their controller: one start, one end.

    Attributes:
        job: the processes of this machine that belong to them, the controller's among them.
        mpi: are they one MPI job?
    """

    job: ProcessTree
    mpi: bool

    def start(self, profile: Path, deadline: float, log: Log) -> None:
        """Start the controller and the engines, and return when the controller listens.

        Raises:
            LaunchError: something has ended, or the deadline, a time of ``time.monotonic()``, has passed.
        """

    def are_up(self, pids: Sequence[int]) -> None:
        """All have registered; from now on one that ends does not end the others."""

    def gone(self) -> list[int]:
        """Ranks whose process is no more."""

    def describe_lost(self, gone: Sequence[int]) -> str:
        """Those in words, with the host, or the rank that was the first."""

    def host_lost(self, gone: Sequence[int]) -> str:
        """With or on which host these ranks were lost, and why; "" where all are on this machine."""
        return ""

    def knows(self, rank: int) -> bool:
        """Of a rank that is gone: is there nothing more to hear about its end?"""
        return True

    def report(self) -> str:
        """What was started, and the last lines that it wrote."""
        return self.job.report()

    def stop(self) -> None:
        """Kill every process and delete every file."""
        self.job.stop()


@dataclass(frozen=True)
class Here:
    """This machine as the place of engines.

    Args:
        n: how many.
        mpiexec: what starts them.
        pins: their GPUs.
    """

    n: int
    mpiexec: tuple[str, ...]
    pins: Pins

    def engines(self) -> EnginesHere:
        return EnginesHere(self)

    def after_loss(self, engines: Engines, log: Log) -> Here:
        """The place to start them anew."""
        return self

    def notes(self, engines: Engines) -> list[str]:
        """Lines for whoever has started them."""
        assert isinstance(engines, EnginesHere)
        idle = idle_hosts("all engines are")
        lines = [
            engines.forks.note(),
            self.pins.line(),
            engines.binding.line() if engines.binding.notable else "",
            f"{idle} cluster.up(slurm={{}}) takes all." if idle else "",
            crowded(self.n),
        ]
        return [line for line in lines if line]

    def describe(self, state: str) -> str:
        """One line that is the same in every run on one machine."""
        threads = count(mpi.threads_per_rank(self.n), "thread")
        if self.n == 1:
            return f"1 engine {state}: id 0 is MPI rank 0, {threads}"
        return f"{self.n} engines {state}: ids 0-{self.n - 1} are MPI ranks 0-{self.n - 1}, {threads} each"

    def test(self) -> str:
        """A command that tries alone what the engines need."""
        return shlex.join([*self.mpiexec, sys.executable, "-m", "mpi4py.bench", "helloworld"])

    @property
    def gpus(self) -> tuple[Gpu | str, ...]:
        """By rank the GPU that it sees."""
        return self.pins.gpus


def crowded(n: int) -> str:
    """A line where ranks share cores; "" where each has one."""
    cores = mpi.usable_cores()
    return f"{n} ranks share {count(cores, 'core')}: fine for learning, not for timing" if n > cores else ""


class OfThisMachine(Engines, Protocol):
    """Those of this machine.

    Attributes:
        binding: their cores.
        forks: what they are forked from.
    """

    binding: Binding
    forks: Forks


class EnginesHere(OfThisMachine):
    """Started by mpiexec, as one MPI job.

    Args:
        place: where and how many.
    """

    mpi = True

    def __init__(self, place: Here) -> None:
        self._place, self._pids = place, list[int]()
        self.binding = bind(place.n, workbench.config.settings().bind)
        self.job = ProcessTree(mpi.environment(mpi.threads_per_rank(place.n)))
        self.job.env |= {"IPYTHONDIR": str(self.job.folder)} | mpi.session_folder(str(self.job.folder))
        self.job.env |= engine_commands.signing() | dict(place.pins.env) | self.binding.env
        self.forks = Forks(self.job.env)

    def start(self, profile: Path, deadline: float, log: Log) -> None:
        """The engines start at once, and wait for the controller's file."""
        self.job.start("controller", self.forks.command(engine_commands.controller(profile)))
        bound, log_file, forked = bool(self.binding.shares), self.job.log("engines"), self.forks.command
        self.job.start("engines", engine_commands.engines(self._place.mpiexec, profile, log_file, bound, forked))
        import workbench.cluster.ipyparallel_internals  # noqa: F401 - meanwhile, for the notebook's own part

        hub = profile / "security" / "ipcontroller-engine.json"
        self.job.wait("the controller listened", lambda: engine_commands.listens(hub), deadline)
        engine_commands.let_in(profile, hub)

    def are_up(self, pids: Sequence[int]) -> None:
        """A stand-in stays in the place of an engine that dies."""
        self._pids = list(pids)
        self.job.follow(pids)
        self.forks.start()
        engine_commands.are_up(self.job.log("engines"))

    def gone(self) -> list[int]:
        return [rank for rank, pid in enumerate(self._pids) if not runs(pid)]

    def describe_lost(self, gone: Sequence[int]) -> str:
        """The lost ranks, and the first of them, by the nannies' log."""
        first = _NOTICE.search(self.job.log("engines").read_text(errors="replace"))
        if len(gone) == 1 or first is None:
            return f"{are(list(gone))} gone"
        return f"{are(list(gone))} gone; rank {first[1]} was the first"
