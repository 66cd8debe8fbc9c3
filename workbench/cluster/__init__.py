"""MPI ranks for a notebook: ``up`` starts them, ``%%px`` cells run on them, ``down`` stops them.

::

    from workbench import cluster

    c = cluster.up(4)      # 4 engines ready: ids 0-3 are MPI ranks 0-3, 1 thread each
    %px print(mpi_rank)    # in a cell of its own
    c.rescue()             # a rank hangs or has died? n healthy ones again
    c.down()

One cluster per kernel; several notebooks on one machine have one each. What runs::

    kernel ── ipyparallel.controller     the hub, its schedulers and the heartbeat
           ├─ mpiexec ── n × ipyparallel.engine --mpi, each with its nanny
           └─ workbench/launch/ranks/watchdog.py    kills all of these if the kernel dies

All files are in one temporary folder, the IPython directory of these processes. The user's own IPython directory
and other ipyparallel clusters are not changed.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import workbench.config
from workbench.cluster import cells
from workbench.cluster import engine_commands as engines
from workbench.cluster.recovery import InPlaceRecovery, are, unknown
from workbench.common.backoff import Backoff
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.launch import site
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.ranks.watchdog import runs
from workbench.launch.start import mpi
from workbench.launch.start.binding import bind
from workbench.launch.start.gpus import Asked, Gpu, Pins, pin
from workbench.launch.start.starters import idle_hosts
from workbench.machine import make_room

_NOTICE = re.compile(r"\[KernelNanny\.(\d+)\] Notifying Hub that our parent has shut down")


class Cluster:
    """``n`` MPI ranks behind ``%px``; made by :func:`up`.

    Attributes:
        n: how many ranks.
        id: the random tag; all its processes have it in ``WORKBENCH_CLUSTER``.
        client: the ``ipyparallel.Client``.
        view: a blocking ``DirectView`` on all ranks, in rank order.

    Example:
        >>> with up(2) as c:  # doctest: +SKIP
        ...     c.view["mpi_rank"]
        [0, 1]
    """

    def __init__(self, n: int, mpiexec: list[str], pins: Pins) -> None:
        self.n, self._mpiexec, self._pins = n, mpiexec, pins
        self._new_job()

    def _new_job(self) -> None:
        self.client: Any = None
        self.view: Any = None
        self._pids: list[int] = []
        self._binding = bind(self.n, workbench.config.settings().bind)
        self._job = ProcessTree(mpi.environment(mpi.threads_per_rank(self.n)))
        self._job.env |= {"IPYTHONDIR": str(self._job.folder)} | mpi.session_folder(str(self._job.folder))
        self._job.env |= engines.signing() | dict(self._pins.env) | self._binding.env
        self.id = self._job.id

    def __repr__(self) -> str:
        return f"<Cluster: {count(self.n, 'MPI rank')}>" if self._job.running() else "<Cluster: stopped>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.down()

    @property
    def gpus(self) -> list[Gpu | str]:
        """By rank the GPU that it sees, as (uuid, name); "" where it is not pinned to one."""
        return list(self._pins.gpus)

    def pids(self) -> list[int]:
        """The engines' process ids, in rank order."""
        return list(self._pids)

    def healthy(self) -> bool:
        """Is every process there, and every rank known to the hub? A rank that is busy is healthy."""
        return self._job.running() and self.client is not None and list(self.client.ids) == list(range(self.n))

    def down(self) -> None:
        """End every process and delete every file of the cluster; called again or in a forked child, do nothing.

        A result that is still awaited raises ipyparallel's ``EngineError`` from now on.

        Raises:
            LaunchError: as :meth:`workbench.launch.ranks.process_tree.ProcessTree.stop`.
        """
        if not self._job.owned():
            return
        _running[:] = [each for each in _running if each is not self]
        self._stop()

    def rescue(self, timeout_s: float = 60.0, quiet: bool = False) -> None:
        """Bring a broken or blocked set back to n healthy engines whose job works, and say what was done.

        1. Engines that are busy are interrupted, as by Ctrl-C. 2. All of them prove by collectives that their job
        works. 3. If it does not, they leave it and begin it again: process sets are lost then. 4. If one is gone, does
        not answer, or that did not help, all are started anew, for an MPI job cannot take in a new rank: then the
        variables on the engines are lost.

        Raises:
            LaunchError: the cluster was stopped, or as :func:`up`.
        """
        if self._job.stopped():
            raise LaunchError("the cluster was stopped: call cluster.up().")
        say = _speaker(quiet)
        if not self._gone() and self.healthy() and InPlaceRecovery(self.client, self.n, self._gone, say).run():
            return
        if gone := self._gone():
            say(self._describe_lost(gone))
        elif "controller" in self._job.ended():
            say("the hub is gone, through which notebook and engines talk")
        begun = time.monotonic()
        self._stop()
        self._new_job()
        self._start_or_stop(timeout_s)
        cells.ready_magics(self.view)
        say(f"{count(self.n, 'engine')} started anew in {time.monotonic() - begun:.0f} s: run the cells again")

    def _describe_lost(self, gone: list[int]) -> str:
        """The lost ranks, and the first of them, by the nannies' log."""
        first = _NOTICE.search(self._job.log("engines").read_text(errors="replace"))
        if len(gone) == 1 or first is None:
            return f"{are(gone)} gone"
        return f"{are(gone)} gone; rank {first[1]} was the first"

    def _gone(self) -> list[int]:
        """Ranks whose process is no more."""
        return [rank for rank, pid in enumerate(self._pids) if not runs(pid)]

    def _stop(self) -> None:
        try:
            cells.forget_magics(self.view)
            if self.client is not None:
                self._disconnect()
        finally:
            self._job.stop()
            self._binding.release()

    def _disconnect(self) -> None:
        """Close the client. Engines die before the hub, so that it can still fail what is awaited from them."""
        if self.client.outstanding and self.client.ids:
            with suppress(*unknown()):
                self.client.send_signal(signal.SIGKILL, block=False)
        backoff = Backoff(timeout_s=1.0)
        while self.client.outstanding and backoff.pause():
            pass
        self.client.close(linger=0)

    def _start_or_stop(self, timeout_s: float) -> None:
        try:
            self._start(timeout_s)
        except Exception as error:
            report = self._job.report()
            self.down()
            test = shlex.join([*self._mpiexec, sys.executable, "-m", "mpi4py.bench", "helloworld"])
            raise LaunchError(
                f"{count(self.n, 'MPI engine')} did not start within {timeout_s:g} s: {error}\n{report}\n"
                f"Nothing was left running. Does this work in a terminal? {test}\n"
                f"If it does and the machine is only slow, give more time: up({self.n}, timeout_s={5 * timeout_s:g})."
            ) from error
        except BaseException:  # Ctrl-C, or the notebook's stop button
            self.down()
            raise

    def _start(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        profile = self._job.folder / "profile"
        files = profile / "security"
        engines.warn_if_readable()
        profile.mkdir()  # by now, for the engines do not wait for the controller to make it
        self._job.start("controller", engines.controller(profile))
        bound, log = bool(self._binding.shares), self._job.log("engines")
        self._job.start("engines", engines.engines(self._mpiexec, profile, log, bound))
        listens = files / "ipcontroller-engine.json"
        self._job.wait("the controller listened", lambda: engines.complete(listens), deadline)
        engines.let_in(profile, listens)
        self._connect(profile, files / "ipcontroller-client.json", deadline)
        self._job.wait("all engines had registered", lambda: len(self.client.ids) >= self.n, deadline)
        self._verify(deadline)

    def _connect(self, profile: Path, connection_file: Path, deadline: float) -> None:
        import ipyparallel  # half a second, which `import workbench.cluster` need not cost

        home = {"profile_dir": str(profile), "ipython_dir": str(self._job.folder)}
        self.client = ipyparallel.Client(str(connection_file), timeout=_left_s(deadline), **home)
        cells.name_the_gone(self.client, self.n)

    def _verify(self, deadline: float) -> None:
        """Ask the engines who they are: engine id must be MPI rank."""
        self.view = self.client[:]
        self.view.block = True
        answers = self.view.apply_async(mpi.whoami).get(_left_s(deadline))
        ranks = {engine: (rank, size) for engine, (rank, size, _) in zip(self.client.ids, answers, strict=True)}
        if ranks != {engine: (engine, self.n) for engine in range(self.n)}:
            lines = "; ".join(f"engine {engine} is rank {rank} of {size}" for engine, (rank, size) in ranks.items())
            raise LaunchError(f"the engines are not one MPI job in rank order: {lines}.")
        self._pids = [pid for _, _, pid in answers]
        self._job.follow(self._pids)
        engines.are_up(self._job.log("engines"))


# The cluster of this kernel, at most one: `up` in a later cell must find what an earlier one started.
_running: list[Cluster] = []


def up(
    n: int | None = None, *, gpus: Asked = None, timeout_s: float = 60.0, mpiexec: str = "", quiet: bool = False
) -> Cluster:
    """Start ``n`` MPI ranks as ipyparallel engines, engine id = MPI rank, and make ``%px`` ready.

    A healthy cluster of ``n`` that is up already, with the GPUs that are asked for, is returned as it is; any other is
    stopped first. More ranks than cores work. Each rank gets ``max(1, cores // n)`` threads, and cores of its own where
    the machine is free: ``WORKBENCH_BIND``, see :mod:`workbench.launch.start.binding`.

    Args:
        n: how many ranks; by default what ``workbench.toml`` says (see ``launch/site.py``), else 2.
        gpus: which GPU each rank sees, as its ``cuda:0``. By default all, and ``set_device(hvd.local_rank())`` chooses.
            ``"auto"``: one for each rank, in turn where there are more ranks; a number: the first so many; a sequence
            of numbers and uuids: these; 0: none. An outer ``CUDA_VISIBLE_DEVICES`` says which there are.
        timeout_s: deadline of the whole start.
        mpiexec: full path of the ``mpiexec`` to use; found by itself when empty.
        quiet: print nothing.

    Raises:
        LaunchError: no fitting ``mpiexec``, no such GPUs, the engines did not start in time, the site file is wrong, or
            this is a rank itself. No process is left.
        ValueError: ``n`` is less than 1.

    Example:
        >>> c = up(2)  # doctest: +SKIP
        2 engines ready: ids 0-1 are MPI ranks 0-1, 1 thread each
        >>> c.down()  # doctest: +SKIP
    """
    here = site.read()
    n = here.engines if n is None else n
    if n < 1:
        raise ValueError(f"n={n}: a cluster has at least 1 rank.")
    if 0 < here.most_engines < n:
        _speaker(quiet)(f"{here.most_engines} engines instead of {n}: {here.path} allows no more")
        n = here.most_engines
    if workbench.config.launch().size > 1:
        raise LaunchError("This process is a rank of a job itself. Call cluster.up() in the notebook, without %%px.")
    say, pins = _speaker(quiet), pin(n, gpus)
    for old in list(_running):
        if old.n == n and old.healthy() and (gpus is None or old._pins == pins):
            say(_describe(n, "already running"))
            return old
        say(f"stopping the cluster of {count(old.n, 'rank')}{'' if old.healthy() else ', which has lost ranks'}")
        old.down()
    make_room(4 * n + 128, f"{count(n, 'engine')} and their hub need")
    cluster = Cluster(n, mpi.command(n, mpiexec, alone=True), pins)
    cluster._start_or_stop(timeout_s)
    _running.append(cluster)
    cells.ready_magics(cluster.view)
    say(_describe(n, "ready"))
    if pins.line():
        say(pins.line())
    if cluster._binding.notable:
        say(cluster._binding.line())
    if idle := idle_hosts("all engines are"):
        say(idle)
    if n > mpi.usable_cores():
        say(f"{n} ranks share {count(mpi.usable_cores(), 'core')}: fine for learning, not for timing")
    return cluster


def down() -> None:
    """Stop the cluster that :func:`up` started in this kernel; without one, do nothing.

    Raises:
        LaunchError: as :meth:`Cluster.down`.
    """
    for cluster in list(_running):
        cluster.down()


def rescue(timeout_s: float = 60.0) -> Cluster:
    """Repair the cluster that :func:`up` started in this kernel, see :meth:`Cluster.rescue`.

    Raises:
        LaunchError: there is none, or as :func:`up`.
    """
    if not _running:
        raise LaunchError("There is no cluster to rescue in this kernel: start one with cluster.up().")
    _running[-1].rescue(timeout_s)
    return _running[-1]


def _speaker(quiet: bool) -> Callable[[str], None]:
    return (lambda line: None) if quiet else (lambda line: print(line, flush=True))


def _describe(n: int, state: str) -> str:
    """One line that is the same in every run on one machine.

    Example:
        >>> _describe(1, "ready").split(", ")[0]
        '1 engine ready: id 0 is MPI rank 0'
    """
    threads = count(mpi.threads_per_rank(n), "thread")
    if n == 1:
        return f"1 engine {state}: id 0 is MPI rank 0, {threads}"
    return f"{n} engines {state}: ids 0-{n - 1} are MPI ranks 0-{n - 1}, {threads} each"


def _left_s(deadline: float) -> float:
    return max(1.0, deadline - time.monotonic())
