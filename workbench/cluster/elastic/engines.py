"""Engines of this machine that are lost and gained while cells run: plain processes, and not one job of mpiexec's."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench import config
from workbench.cluster import engine_commands
from workbench.cluster.elastic.watch import MembershipThread, name_of
from workbench.cluster.engines_here import Engines, Log, OfThisMachine, crowded
from workbench.common.text import count
from workbench.launch.forks.find import Forks
from workbench.launch.ranks import supervisor
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.ranks.worker_registry import NAME
from workbench.launch.start import mpi
from workbench.launch.start.binding import bind, placed
from workbench.launch.start.gpus import Gpu, Pins
from workbench.launch.start.starters import Placement, worker_variables

_ENGINE = ["workbench.launch.ranks.engine", "--timeout=60", "--IPEngine.wait_for_url_file=86400"]
_TIMEOUT = "WORKBENCH_ELASTIC_TIMEOUT_S"


@dataclass(frozen=True)
class ElasticHere:
    """This machine as the place of engines that may die.

    Args:
        n: how many at the start.
        least: a training goes on while so many live.
        pins: their GPUs.
    """

    n: int
    least: int
    pins: Pins

    def engines(self) -> ElasticEngines:
        return ElasticEngines(self)

    def after_loss(self, engines: Engines, log: Log) -> ElasticHere:
        return self

    def notes(self, engines: Engines) -> list[str]:
        assert isinstance(engines, ElasticEngines)
        return [line for line in (engines.forks.note(), self.pins.line(), crowded(self.n)) if line]

    def describe(self, state: str) -> str:
        """One line that is the same in every run on one machine."""
        return f"{count(self.n, 'engine')} {state}; a training goes on while {self.least} of them live"

    def test(self) -> str:
        return shlex.join([sys.executable, "-m", *_ENGINE[:1], "--help"])

    @property
    def gpus(self) -> tuple[Gpu | str, ...]:
        return self.pins.gpus


class ElasticEngines(OfThisMachine):
    """See :class:`workbench.cluster.engines_here.Engines`. An engine keeps its id, and no other ever gets it.

    Args:
        place: where and how many.

    Attributes:
        watch: knows who lives, and which of them train together.
    """

    mpi = False

    def __init__(self, place: ElasticHere) -> None:
        self._place, self._next, self._profile = place, 0, Path()
        self._slots: dict[int, int] = {}  # of the engines that were started, by id
        self.binding = bind(place.n, config.settings().bind)
        self.job = ProcessTree(mpi.environment(mpi.threads_per_rank(place.n)))
        self.job.env |= {"IPYTHONDIR": str(self.job.folder)} | engine_commands.signing() | dict(place.pins.env)
        settings = config.settings()
        self.watch = MembershipThread(self.job, str(self.job.folder / NAME), place.least, settings.peer_timeout_s)
        own = {
            "WORKBENCH_MEMBERSHIP": self.watch.path,
            "WORKBENCH_MIN_NP": str(place.least),
            "WORKBENCH_MAX_NP": str(place.n),
            # A cell that waits for engines that never come ends as one does in which the first init() waits.
            _TIMEOUT: self.job.env.get(_TIMEOUT, str(settings.init_timeout_s)),
        }
        self._common = dict(self.job.env) | own
        self.forks = Forks(self._common)

    def start(self, profile: Path, deadline: float, log: Log) -> None:
        """The engines start at once, and wait for the controller's file."""
        self._profile = profile
        self.job.start("controller", self.forks.command(engine_commands.controller(profile)))
        for _ in range(self._place.n):
            self.begin()
        hub = profile / "security" / "ipcontroller-engine.json"
        self.job.wait("the controller listened", lambda: engine_commands.listens(hub), deadline)
        engine_commands.let_in(profile, hub)

    def begin(self) -> int:
        """Start one more engine; its id."""
        taken = {self._slots[each] for each in self.watch.living()}
        worker, slot = self._next, next(each for each in range(self._next + 1) if each not in taken)
        self._next, self._slots[worker] = self._next + 1, slot
        self.watch.add(worker)
        variables = worker_variables(worker, Placement("localhost", slot, slot))
        self.job.env = self._common | variables | placed(self.binding, worker, slot)
        words = [f"--profile-dir={self._profile}", f"--IPEngine.id={worker}"]
        words += [f"--IPEngine.url_file={engine_commands.ready_file(self._profile)}"]
        become = [sys.executable, "-I", "-S", supervisor.__file__, supervisor.BECOME]
        try:
            self.job.start(name_of(worker), [*become, *self.forks.command([sys.executable, "-m", *_ENGINE, *words])])
        except BaseException:
            self.watch.forget(worker)
            raise
        finally:
            self.job.env = dict(self._common)
        return worker

    def are_up(self, pids: Sequence[int]) -> None:
        """From now on one that ends does not end the others."""
        self.job.follow(pids)
        self.forks.start()
        self.watch.start()

    def gone(self) -> list[int]:
        """Engines that have died before all were up; of later ones the watch tells."""
        if self.watch.is_alive():
            return []
        ended = self.job.ended()
        return [worker for worker in self.watch.living() if name_of(worker) in ended]

    def describe_lost(self, gone: Sequence[int]) -> str:
        return f"{count(len(gone), 'engine')} ended: {', '.join(map(str, gone))}"

    def stop(self) -> None:
        """The watch first: what ends from now on is not lost."""
        self.watch.close()
        super().stop()
