"""The cluster of this kernel: ranks behind ``%px``, from their start to their end, and their rescue."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from workbench import config
from workbench.cluster import cells, places
from workbench.cluster import engine_commands as engines
from workbench.cluster.answers import first_answers
from workbench.cluster.engines_here import Here
from workbench.cluster.engines_on_hosts import EnginesOnHosts, OnHosts
from workbench.cluster.recovery import InPlaceRecovery, unknown
from workbench.cluster.sent_cells import SentCells
from workbench.cluster.stopped import StoppedEngines
from workbench.common.backoff import Backoff
from workbench.common.cell_numbers import STATE
from workbench.common.notice import Notice
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.launch.start import mpi
from workbench.launch.start.gpus import Gpu
from workbench.launch.start.in_turn import in_turn
from workbench.machine import has_ended, why_stopped

_ASK_S = 0.2
_LOOK_S = 0.2  # so long, at first, until the hub is asked which engines there are
_SIGN_S = 2.0  # a start that takes longer says how far it is


class Cluster:
    """``n`` ranks behind ``%px``; made by :func:`up`.

    Attributes:
        n: how many ranks.
        id: the random tag; all its processes have it in ``WORKBENCH_CLUSTER``.
        client: the ``ipyparallel.Client``.
        view: a blocking ``DirectView`` on all ranks, in rank order.
        panel: what ``cluster.watch()`` has made in a notebook.
        ddp: do groups of torch that ask for another backend get the workbench's?

    Example:
        >>> with up(2) as c:  # doctest: +SKIP
        ...     c.view["mpi_rank"]
        [0, 1]
    """

    def __init__(self, place: places.AnyPlace, log: Callable[[str], None] = print, ddp: bool = False) -> None:
        self.n, self._asked, self._place, self._log, self.ddp = place.n, place, place, log, ddp
        self._now: Callable[[str], None] = getattr(log, "now", lambda text: None)
        self.panel: Any = None
        self._new_job()

    def _new_job(self) -> None:
        self.client: Any = None
        self.view: Any = None
        self._pids: list[int] = []
        with config.changed_environment(**config.torch_group_variables() if self.ddp else {}):
            self._engines = self._place.engines()
        self._job = self._engines.job
        self.id = self._job.id

    def __repr__(self) -> str:
        kind = "MPI rank" if self.mpi else "rank"
        return f"<Cluster: {count(self.n, kind)}>" if self._job.running() else "<Cluster: stopped>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def gpus(self) -> list[Gpu | str]:
        """By rank the GPU that it sees, as (uuid, name); "" where it is not pinned to one. Empty on other hosts."""
        return list(self._place.gpus)

    @property
    def mpi(self) -> bool:
        """Are the ranks one MPI job, so that ``MPI.COMM_WORLD`` in a cell has all of them?"""
        return self._engines.mpi

    def pids(self) -> list[int]:
        """The engines' process ids, each on its host, in rank order."""
        return list(self._pids)

    def healthy(self) -> bool:
        """Is every process there, and every rank known to the hub? A rank that is busy is healthy."""
        return self._job.running() and self.client is not None and list(self.client.ids) == list(range(self.n))

    def is_current(self) -> bool:
        """Is it this kernel's cluster, or was it stopped?"""
        return any(each is self for each in RUNNING)

    def status(self) -> str:
        """What runs, where, and how long its hosts are reserved."""
        if self._job.stopped():
            return "stopped"
        gone = self._engines.gone()
        lines = [self._engines.describe_lost(gone) if gone else self._place.describe("running")]
        lines += self._place.notes(self._engines) if isinstance(self._place, OnHosts) else []
        return "\n".join(lines)

    def down(self) -> None:
        """End every process and delete every file of the cluster; called again or in a forked child, do nothing.

        A result that is still awaited raises ipyparallel's ``EngineError`` from now on. Hosts that Slurm has reserved
        stay so, see :func:`release`.

        Raises:
            LaunchError: as :meth:`workbench.launch.ranks.process_tree.ProcessTree.stop`.
        """
        if not self._job.owned():
            return
        RUNNING[:] = [each for each in RUNNING if each is not self]
        self._stop()

    def rescue(self, timeout_s: float = 60.0, quiet: bool = False) -> None:
        """Restore n healthy engines whose job works, and say what was done.

        1. Engines that are busy are interrupted, as by Ctrl-C.
        2. All of them prove by collectives that their job works. If not, they begin it again, without process sets.
        3. If an engine is gone, does not answer, or this did not help, all are started again, because a new rank cannot
           join an MPI job; the variables on the engines are lost. Each starts where it was, or elsewhere if its host is
           gone.

        Raises:
            LaunchError: the cluster was stopped, no host is left, its Slurm job has ended, or as :func:`up`.
        """
        if self._job.stopped():
            raise LaunchError("the cluster was stopped: call cluster.up().")
        log = Speaker(quiet)
        well = not self._engines.gone() and self.healthy()
        if well:
            recovery = InPlaceRecovery(self.client, self.n, self._engines.gone, log, self.mpi)
            with log.of(recovery.at):
                if recovery.run():
                    return
        if gone := self._engines.gone():
            log(self._engines.describe_lost(gone))
        elif "controller" in self._job.ended():
            log(cells.HUB_GONE)
        self._place = self._place.after_loss(self._engines, log)
        self._start_anew(timeout_s, log)

    def _start_anew(self, timeout_s: float, log: Callable[[str], None]) -> None:
        """End all engines, and start as many as the place says."""
        begun, self._now = time.monotonic(), getattr(log, "now", lambda text: None)
        self._stop()
        self._new_job()
        self._start_or_stop(timeout_s)
        cells.ready_magics(self.view)
        log(f"{count(self.n, 'engine')} started anew in {time.monotonic() - begun:.0f} s: run the cells again")

    def _stop(self) -> None:
        try:
            cells.forget_magics(self.view)
            if self.client is not None:
                self._disconnect()
        finally:
            self._engines.stop()

    def _disconnect(self) -> None:
        """Close the client. Engines die before the hub, so that it can still fail what is awaited from them."""
        self.client.died = "engine {} was ended by down() or rescue()".format
        others = self._others()
        if self.client.ids and (self.client.outstanding or others):
            with suppress(*unknown()):
                self.client.send_signal(signal.SIGKILL, block=False)
        backoff = Backoff(timeout_s=1.0)
        while (self.client.outstanding or (others and self.client.ids)) and backoff.pause():
            pass
        self.client.close(linger=0)

    def _others(self) -> bool:
        """Has another notebook sent cells?"""
        backoff, asked = Backoff(timeout_s=_ASK_S), [self.client.ask(each, STATE, {}) for each in self.client.ids]
        asked = [each for each in asked if each is not None]
        while not all(each.done() for each in asked) and backoff.pause():
            pass
        return any(each.result()["content"].get("others") for each in asked if each.done() and not each.exception())

    def _start_or_stop(self, timeout_s: float) -> None:
        try:
            try:
                with self._in_turn(timeout_s):
                    self._start(timeout_s)
            finally:
                self._now("")
        except Exception as error:
            report, found = self._engines.report(), self.client
            self.down()
            if isinstance(error, LaunchError) and isinstance(self._place, OnHosts) and not found:
                raise LaunchError(str(error)) from error  # of the rehearsal: it names the host, and the cure
            self._explain(error, report, timeout_s)
        except BaseException:  # Ctrl-C, or the notebook's stop button
            self.down()
            raise

    def _in_turn(self, timeout_s: float) -> AbstractContextManager[None]:
        """On this machine: many users may start engines at the same moment, as in a class."""
        if not isinstance(self._place, Here):
            return nullcontext()
        return in_turn(timeout_s, lambda: self._now("others on this machine start engines: then these start"))

    def _explain(self, error: Exception, report: str, timeout_s: float) -> None:
        kind = "MPI engine" if self.mpi else "engine"
        raise LaunchError(
            f"{count(self.n, kind)} did not start within {timeout_s:g} s: {error}\n{report}\n"
            f"Nothing was left running. Does this work in a terminal? {self._place.test()}\n"
            f"If it does and the machine is only slow, give more time: up({self.n}, timeout_s={5 * timeout_s:g})."
        ) from error

    def _start(self, timeout_s: float) -> None:
        self._started_at, self._look_at_s = time.monotonic(), _LOOK_S
        deadline = self._started_at + timeout_s
        profile = self._job.folder / "profile"
        engines.warn_if_readable()
        profile.mkdir()  # by now, for the engines do not wait for the controller to make it
        self._engines.start(profile, deadline, self._log)
        self._connect(profile, profile / "security" / "ipcontroller-client.json", deadline)
        self._job.wait("all engines had registered", self._registered, deadline)
        self._verify(deadline)

    def _registered(self) -> bool:
        if gone := self._engines.gone():
            raise LaunchError(f"{self._engines.describe_lost(gone)}.")
        there, took = len(self.client.ids), time.monotonic() - self._started_at
        if there < self.n and took > self._look_at_s:
            self.client.look_again()
            self._look_at_s = took + max(_LOOK_S, took / 2)
        if took >= _SIGN_S:
            self._now(f"starting: {there} of {count(self.n, 'engine')} answer, {took:.0f} s")
        return there >= self.n

    def _connect(self, profile: Path, connection_file: Path, deadline: float) -> None:
        # Half a second, which `import workbench.cluster` need not cost.
        from workbench.cluster.ipyparallel_internals import Client

        left_s = max(1.0, deadline - time.monotonic())
        home = {"profile_dir": str(profile), "ipython_dir": str(self._job.folder)}
        self._look_at_s += time.monotonic() - self._started_at
        self.client = Client(str(connection_file), timeout=left_s, **home)
        cells.name_the_gone(self.client, self.n, self._engines)
        SentCells(self.client, StoppedEngines(self._why_stopped, self._log).look)

    def _why_stopped(self, engine: int) -> str | None:
        """Why an engine's process does not run; "" if it does, or is not known yet, and None if it has ended."""
        if isinstance(self._engines, EnginesOnHosts):
            return self._engines.stopped(engine)
        if engine >= len(self._pids):
            return ""
        pid = self._pids[engine]
        return None if has_ended(pid) else why_stopped(pid)

    def _verify(self, deadline: float) -> None:
        self.view = self.client[:]
        self.view.block = True
        answers = first_answers(self.client, mpi.whoami, deadline)
        ranks = {engine: (rank, size) for engine, (rank, size, _) in answers.items()}
        if ranks != {each: (each, self.n) for each in range(self.n)}:
            told = "; ".join(f"engine {engine} is rank {rank} of {size}" for engine, (rank, size) in ranks.items())
            raise LaunchError(f"the engines are not one job in rank order: {told}.")
        self._pids = [pid for _, _, pid in answers.values()]
        self._engines.are_up(self._pids)


# The cluster of this kernel, at most one: `up` in a later cell must find what an earlier one started.
RUNNING: list[Cluster] = []


def current() -> Cluster | None:
    """The cluster that :func:`workbench.cluster.up` started in this kernel, if it is up.

    Example:
        >>> current() is None
        True
    """
    return RUNNING[-1] if RUNNING else None


class Speaker(Notice):
    """Prints lines at once; and one that the next one replaces, where somebody looks.

    Args:
        quiet: print nothing.
    """

    def __init__(self, quiet: bool) -> None:
        super().__init__(False if quiet else config.stream())
        self._quiet = quiet

    def __call__(self, line: str) -> None:
        if not self._quiet:
            self.now("")
            print(line, flush=True)
