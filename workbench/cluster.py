"""MPI ranks for a notebook: ``up`` starts them, ``%%px`` cells run on them, ``down`` leaves nothing behind.

::

    from workbench import cluster

    c = cluster.up(4)      # 4 engines ready: ids 0-3 are MPI ranks 0-3, 1 thread each
    %px print(mpi_rank)    # in a cell of its own
    c.rescue()             # a rank hangs or has died? n healthy ones again
    c.down()

One cluster per kernel; several notebooks on one machine have one each. What runs::

    kernel ── ipyparallel.controller     the hub, its schedulers and the heartbeat
           ├─ mpiexec ── n × ipyparallel.engine --mpi, each with its nanny
           └─ workbench/launch/warden.py    ends all of this if the kernel dies

Files lie in one temporary folder that serves as the IPython directory of these processes, so the user's
own IPython directory and other ipyparallel clusters are not touched.
"""

from __future__ import annotations

import os
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

import psutil

import workbench.config
from workbench import cells
from workbench.course import site
from workbench.errors import LaunchError
from workbench.launch import engines, mpi
from workbench.launch.gpus import Asked, Gpu, Pins, pin
from workbench.launch.job import Job

_NOTICE = re.compile(r"\[KernelNanny\.(\d+)\] Notifying Hub that our parent has shut down")
_PATIENCE_S = 1.5  # with an engine that may be slow and no more, as on a busy machine
_ANSWER_S = 5.0  # for an engine that was interrupted


class Cluster:
    """``n`` MPI ranks behind ``%px``; made by :func:`up`.

    Attributes:
        n: how many ranks.
        id: the random mark that all its processes carry in ``WORKBENCH_CLUSTER``.
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
        self._job = Job(mpi.environment(mpi.threads_per_rank(self.n)))
        self._job.env |= {"IPYTHONDIR": str(self._job.folder)} | mpi.session_folder(str(self._job.folder))
        self._job.env |= self._pins.env
        self.id = self._job.id

    def __repr__(self) -> str:
        return f"<Cluster: {_count(self.n, 'MPI rank')}>" if self._job.running() else "<Cluster: stopped>"

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
            LaunchError: as :meth:`workbench.launch.job.Job.stop`.
        """
        if not self._job.owned():
            return
        _running[:] = [each for each in _running if each is not self]
        self._stop()

    def rescue(self, timeout_s: float = 60.0, quiet: bool = False) -> None:
        """Bring a broken or blocked set back to n healthy engines, and say what was done.

        Engines that are busy are interrupted, as by Ctrl-C. If one is gone, or does not answer then, all are started
        anew, for an MPI job cannot take in a new rank: then the variables on the engines are lost.

        Raises:
            LaunchError: as :func:`up`.
        """
        say = _speaker(quiet)
        gone = self._gone()
        if not gone and self.healthy():
            busy, silent = self._interrupt()
            if not silent:
                say(f"{_ranks(busy)} interrupted; all {self.n} engines answer" if busy else "nothing to rescue")
                return
            gone = self._gone()  # a process takes a moment to die
            if not gone:
                say(f"{_ranks(silent)} not even ended by Ctrl-C")
        if gone:
            say(self._obituary(gone))
        begun = time.monotonic()
        self._stop()
        self._new_job()
        self._start_or_stop(timeout_s)
        cells.ready_magics(self.view)
        say(f"{_count(self.n, 'engine')} started anew in {time.monotonic() - begun:.0f} s: run the cells again")

    def _obituary(self, gone: list[int]) -> str:
        """Who is gone, and who was the first, by the nannies' own words."""
        first = _NOTICE.search(self._job.log("engines").read_text(errors="replace"))
        if len(gone) == 1 or first is None:
            return f"{_ranks(gone)} gone"
        return f"{_ranks(gone)} gone; rank {first[1]} was the first"

    def _interrupt(self) -> tuple[list[int], list[int]]:
        """Ctrl-C for engines that are busy: (those that were, those that are still)."""
        busy = self._silent(_PATIENCE_S)
        there = [rank for rank in busy if rank in self.client.ids]
        if self._gone():
            return busy, busy
        for rank in there:
            with suppress(*_unknown()):  # it may be dying at this moment
                self.client.send_signal(signal.SIGINT, targets=rank, block=False)
        return busy, self._silent(_ANSWER_S) if busy else []

    def _silent(self, patience_s: float) -> list[int]:
        """Engines that have not answered so many seconds after the last one that has."""
        answers = {}
        for rank in range(self.n):
            with suppress(*_unknown()):  # also one that dies between a look at the ids and the question
                answers[rank] = self.client[rank].apply_async(os.getpid)
        missing, deadline = list(answers.values()), time.monotonic() + patience_s
        while missing and time.monotonic() < deadline:
            left = [answer for answer in missing if not answer.ready()]
            if len(left) < len(missing):
                missing, deadline = left, time.monotonic() + patience_s
            time.sleep(0.01)
        well = [rank for rank, answer in answers.items() if answer.ready() and answer.exception() is None]
        return [rank for rank in range(self.n) if rank not in well]

    def _gone(self) -> list[int]:
        """Ranks whose process is no more."""
        return [rank for rank, pid in enumerate(self._pids) if not _alive(pid)]

    def _stop(self) -> None:
        try:
            cells.forget_magics(self.view)
            if self.client is not None:
                self._disconnect()
        finally:
            self._job.stop()

    def _disconnect(self) -> None:
        """Close the client. Engines die before the hub, so that it can still fail what is awaited from them."""
        deadline = time.monotonic() + 1
        if self.client.outstanding and self.client.ids:
            with suppress(*_unknown()):
                self.client.send_signal(signal.SIGKILL, block=False)
        while self.client.outstanding and time.monotonic() < deadline:
            time.sleep(0.02)
        self.client.close(linger=0)

    def _start_or_stop(self, timeout_s: float) -> None:
        try:
            self._start(timeout_s)
        except Exception as error:
            report = self._job.report()
            self.down()
            test = shlex.join([*self._mpiexec, sys.executable, "-m", "mpi4py.bench", "helloworld"])
            raise LaunchError(
                f"{_count(self.n, 'MPI engine')} did not start within {timeout_s:g} s: {error}\n{report}\n"
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
        self._job.start("controller", engines.controller(profile))
        listens = files / "ipcontroller-engine.json"
        self._job.wait("the controller listened", lambda: engines.complete(listens), deadline)
        self._job.start("engines", engines.engines(self._mpiexec, profile, self._job.log("engines")))
        self._connect(profile, files / "ipcontroller-client.json", deadline)
        self._job.wait("all engines had registered", lambda: len(self.client.ids) >= self.n, deadline)
        self._verify(deadline)

    def _connect(self, profile: Path, connection_file: Path, deadline: float) -> None:
        import ipyparallel  # half a second, which `import workbench.cluster` need not cost

        home = {"profile_dir": str(profile), "ipython_dir": str(self._job.folder)}
        self.client = ipyparallel.Client(str(connection_file), timeout=_left_s(deadline), **home)

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
    stopped first. More ranks than cores work. Each rank gets ``max(1, cores // n)`` threads.

    Args:
        n: how many ranks; by default what ``workbench.toml`` says (see ``course/site.py``), else 2.
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
        say(f"stopping the cluster of {_count(old.n, 'rank')}{'' if old.healthy() else ', which has lost ranks'}")
        old.down()
    cluster = Cluster(n, mpi.command(n, mpiexec, alone=True), pins)
    cluster._start_or_stop(timeout_s)
    _running.append(cluster)
    cells.ready_magics(cluster.view)
    say(_describe(n, "ready"))
    if pins.line():
        say(pins.line())
    if n > mpi.usable_cores():
        say(f"{n} ranks share {_count(mpi.usable_cores(), 'core')}: fine for learning, not for timing")
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


def _unknown() -> tuple[type[Exception], ...]:
    """What a client raises for an engine that the hub has just taken from its list."""
    from ipyparallel.error import NoEnginesRegistered

    return KeyError, IndexError, NoEnginesRegistered


def _speaker(quiet: bool) -> Callable[[str], None]:
    return (lambda line: None) if quiet else (lambda line: print(line, flush=True))


def _describe(n: int, state: str) -> str:
    """One line that is the same in every run on one machine.

    Example:
        >>> _describe(1, "ready").split(", ")[0]
        '1 engine ready: id 0 is MPI rank 0'
    """
    threads = _count(mpi.threads_per_rank(n), "thread")
    if n == 1:
        return f"1 engine {state}: id 0 is MPI rank 0, {threads}"
    return f"{n} engines {state}: ids 0-{n - 1} are MPI ranks 0-{n - 1}, {threads} each"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _ranks(ranks: list[int]) -> str:
    """``rank 2 is``, ``ranks 0, 2 are``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} {'are' if len(ranks) > 1 else 'is'}"


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _left_s(deadline: float) -> float:
    return max(1.0, deadline - time.monotonic())
