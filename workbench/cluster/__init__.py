"""Ranks for a notebook: ``up`` starts them, ``%%px`` cells run on them, ``down`` stops them.

::

    from workbench import cluster

    c = cluster.up(4)      # 4 engines ready: ids 0-3 are MPI ranks 0-3, 1 thread each
    %px print(mpi_rank)    # in a cell of its own
    c.rescue()             # a rank hangs or has died? n healthy ones again
    c.down()

The same cells on several hosts, and on hosts that Slurm, Ray or Kubernetes gives::

    cluster.up(hosts=["node1:2", "node2:2"])
    cluster.up(slurm=dict(nodes=2, tasks_per_node=2, time="30:00"))   # or cluster.up(4, ray={}), cluster.up(k8s={})
    cluster.down()         # the hosts stay reserved: the next up() is there in seconds
    cluster.release()      # … until now

One cluster per kernel; several notebooks on one machine have one each. What runs on one machine::

    kernel ── ipyparallel.controller     the hub, its schedulers and the heartbeat
           ├─ mpiexec ── n × ipyparallel.engine --mpi, each with its nanny
           └─ workbench/launch/ranks/watchdog.py    kills all of these if the kernel dies

On several hosts it is as :mod:`workbench.cluster.engines_on_hosts` draws it. All files are in one temporary folder on
each host, the IPython directory of these processes. The user's own IPython directory and other ipyparallel clusters
are not changed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import workbench.config
from workbench.cluster import cells, places
from workbench.cluster import engine_commands as engines
from workbench.cluster.engines_here import Here
from workbench.cluster.engines_on_hosts import EnginesOnHosts, OnHosts
from workbench.cluster.recovery import InPlaceRecovery, unknown
from workbench.cluster.sent_cells import SentCells
from workbench.cluster.stopped import StoppedEngines
from workbench.common.backoff import Backoff
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.launch import site
from workbench.launch.start import mpi
from workbench.launch.start.gpus import Asked, Gpu
from workbench.launch.sync import sync as copy_folder
from workbench.machine import has_ended, make_room, why_stopped


class Cluster:
    """``n`` ranks behind ``%px``; made by :func:`up`.

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

    def __init__(self, place: places.AnyPlace, say: Callable[[str], None] = print) -> None:
        self.n, self._asked, self._place, self._say = place.n, place, place, say
        self._new_job()

    def _new_job(self) -> None:
        self.client: Any = None
        self.view: Any = None
        self._pids: list[int] = []
        self._engines = self._place.engines()
        self._job = self._engines.job
        self.id = self._job.id

    def __repr__(self) -> str:
        kind = "MPI rank" if self.mpi else "rank"
        return f"<Cluster: {count(self.n, kind)}>" if self._job.running() else "<Cluster: stopped>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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

    def status(self) -> str:
        """What runs, where, and how long its hosts are reserved."""
        if self._job.stopped():
            return "stopped"
        gone = self._gone()
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
        _running[:] = [each for each in _running if each is not self]
        self._stop()

    def rescue(self, timeout_s: float = 60.0, quiet: bool = False) -> None:
        """Bring a broken or blocked set back to n healthy engines whose job works, and say what was done.

        1. Engines that are busy are interrupted, as by Ctrl-C.
        2. All of them prove by collectives that their job works. If not, they begin it again, without process sets.
        3. If one is gone, does not answer, or that did not help, all are started anew, for an MPI job cannot take in a
           new rank; the variables on the engines are lost. Each starts where it was, or elsewhere if its host is gone.

        Raises:
            LaunchError: the cluster was stopped, no host is left, its Slurm job has ended, or as :func:`up`.
        """
        if self._job.stopped():
            raise LaunchError("the cluster was stopped: call cluster.up().")
        say = _speaker(quiet)
        well = not self._gone() and self.healthy()
        if well and InPlaceRecovery(self.client, self.n, self._gone, say, self.mpi).run():
            return
        if gone := self._gone():
            say(self._engines.describe_lost(gone))
        elif "controller" in self._job.ended():
            say(cells.HUB_GONE)
        self._place = self._place.after_loss(self._engines, say)
        self._start_anew(timeout_s, say)

    def _start_anew(self, timeout_s: float, say: Callable[[str], None]) -> None:
        """End all engines, and start as many as the place says."""
        begun = time.monotonic()
        self._stop()
        self._new_job()
        self._start_or_stop(timeout_s)
        cells.ready_magics(self.view, self._engines.host_lost)
        say(f"{count(self.n, 'engine')} started anew in {time.monotonic() - begun:.0f} s: run the cells again")

    def _gone(self) -> list[int]:
        """Ranks whose process is no more."""
        return self._engines.gone()

    def _stop(self) -> None:
        try:
            cells.forget_magics(self.view)
            if self.client is not None:
                self._disconnect()
        finally:
            self._engines.stop()

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
            report, found = self._engines.report(), self.client
            self.down()
            if isinstance(error, LaunchError) and isinstance(self._place, OnHosts) and not found:
                raise LaunchError(str(error)) from error  # of the rehearsal: it names the host, and the cure
            self._explain(error, report, timeout_s)
        except BaseException:  # Ctrl-C, or the notebook's stop button
            self.down()
            raise

    def _explain(self, error: Exception, report: str, timeout_s: float) -> None:
        kind = "MPI engine" if self.mpi else "engine"
        raise LaunchError(
            f"{count(self.n, kind)} did not start within {timeout_s:g} s: {error}\n{report}\n"
            f"Nothing was left running. Does this work in a terminal? {self._place.test()}\n"
            f"If it does and the machine is only slow, give more time: up({self.n}, timeout_s={5 * timeout_s:g})."
        ) from error

    def _start(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        profile = self._job.folder / "profile"
        engines.warn_if_readable()
        profile.mkdir()  # by now, for the engines do not wait for the controller to make it
        self._engines.start(profile, deadline, self._say)
        self._connect(profile, profile / "security" / "ipcontroller-client.json", deadline)
        self._job.wait("all engines had registered", self._registered, deadline)
        self._verify(deadline)

    def _registered(self) -> bool:
        if gone := self._engines.gone():
            raise LaunchError(f"{self._engines.describe_lost(gone)}.")
        return len(self.client.ids) >= self.n

    def _connect(self, profile: Path, connection_file: Path, deadline: float) -> None:
        from workbench.cluster.client import Client  # half a second, which `import workbench.cluster` need not cost

        home = {"profile_dir": str(profile), "ipython_dir": str(self._job.folder)}
        self.client = Client(str(connection_file), timeout=_left_s(deadline), **home)
        cells.name_the_gone(self.client, self.n, self._engines.host_lost)
        SentCells(self.client, StoppedEngines(self._why_stopped, self._say).look)

    def _why_stopped(self, engine: int) -> str | None:
        """Why an engine's process does not run; "" if it does, or is not known yet, and None if it has ended."""
        if isinstance(self._engines, EnginesOnHosts):
            return self._engines.stopped(engine)
        if engine >= len(self._pids):
            return ""
        pid = self._pids[engine]
        return None if has_ended(pid) else why_stopped(pid)

    def _verify(self, deadline: float) -> None:
        from workbench.cluster.asking import first_answers  # engine id must be the rank

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
_running: list[Cluster] = []


def up(
    n: int | None = None,
    *,
    hosts: Sequence[str] | str | None = None,
    slurm: Mapping[str, Any] | None = None,
    ray: Mapping[str, Any] | None = None,
    k8s: Mapping[str, Any] | None = None,
    min_np: int | None = None,
    sync: bool = False,
    gpus: Asked = None,
    timeout_s: float = 60.0,
    mpiexec: str = "",
    quiet: bool = False,
) -> Cluster:
    """Start ``n`` ranks as ipyparallel engines, engine id = rank, and make ``%px`` ready.

    A healthy cluster that is up already, of the same size, hosts and GPUs, is returned as it is; any other is
    stopped first. More ranks than cores work. Each rank gets ``max(1, cores // n)`` threads, and cores of its own where
    the machine is free: ``WORKBENCH_BIND``, see :mod:`workbench.launch.start.binding`.

    On several hosts the engines are ranks as ``workbench run -H`` starts them, after the same rehearsal: hosts are
    reached by ssh without a prompt, the notebook's folder must be on all of them, and what is wrong is named with its
    host before anything starts. They talk over TCP; ``WORKBENCH_BACKEND=mpi`` has MPI's launcher start them, and only
    then ``MPI.COMM_WORLD`` has all of them. What the notebook sends to engines, and they to it, is encrypted.

    Args:
        n: how many ranks; by default the hosts' slots; here what ``workbench.toml`` says (``launch/site.py``), else 2.
        hosts: ``["a:2", "b:2"]``: names and how many ranks each takes. By default those that ``workbench.toml`` names,
            else this machine; ``[]`` for this machine in any case.
        slurm: hosts that Slurm reserves: ``dict(nodes=2, tasks_per_node=2, time="30:00")``.
        ray: places in the Ray cluster that this kernel is connected to: ``dict(gpus=1)``, or ``{}``. All words of these
            three are in :class:`workbench.cluster.places.Wish`. What Slurm or Ray has given stays over :func:`down` and
            ``up``, until :func:`release`, the end of the kernel, or of its time.
        k8s: ``{}``, in JupyterLab of our chart: the chart's pods that are ready, by ssh.
        min_np: a cell under ``hvd.elastic.run`` goes on while so many engines live, and ``resize(n)`` brings others in;
            on this machine only, and without MPI. See :mod:`workbench.cluster.elastic.cluster`.
        sync: copy the notebook's folder to the hosts first, but for what ``.gitignore`` names: where they share none.
        gpus: which GPU each rank sees, as its ``cuda:0``. By default all, and ``set_device(hvd.local_rank())`` chooses.
            ``"auto"``: one for each rank, in turn where there are more ranks; a number: the first so many; a sequence
            of numbers and uuids: these; 0: none. An outer ``CUDA_VISIBLE_DEVICES`` says which there are.
        timeout_s: deadline of the whole start, without the wait for Slurm.
        mpiexec: on this machine, full path of the ``mpiexec`` to use; found by itself when empty.
        quiet: print nothing.

    Raises:
        LaunchError: no fitting ``mpiexec``, no such GPUs, the engines did not start in time, the site file is wrong, a
            host cannot be used, Slurm grants nothing, or this is a rank itself. No process is left.
        ValueError: ``n`` is less than 1, ``min_np`` does not fit it or the place, or the hosts are named in two ways.

    Example:
        >>> c = up(hosts=["node1:2", "node2:2"])  # doctest: +SKIP
        4 engines ready, whose ids are the ranks: ranks 0, 1 on node1, ranks 2, 3 on node2
        >>> c = up(slurm=dict(nodes=2, tasks_per_node=2, time="30:00"))  # doctest: +SKIP
        job 71 is submitted; scancel 71 ends it
        job 71: pending, because of Resources; 2 before it in its partition
        4 engines ready, whose ids are the ranks: ranks 0, 1 on gpu03, ranks 2, 3 on gpu04
        Slurm job 71 on gpu03, gpu04: 30 min left; cluster.release() gives it back
        >>> down(), release()  # doctest: +SKIP
        (None, None)
    """
    if workbench.config.launch().size > 1:
        raise LaunchError("This process is a rank of a job itself. Call cluster.up() in the notebook, without %%px.")
    say = _speaker(quiet)
    place = places.find(places.Wish(n, hosts, slurm, ray, k8s, gpus, mpiexec, min_np), site.read(), say, release)
    for old in list(_running):
        if places.fits(old._asked, place, gpus) and old.healthy():
            for line in [old._place.describe("already running"), *places.time_left(old._place)]:
                say(line)
            return old
        say(f"stopping the cluster of {count(old.n, 'rank')}{'' if old.healthy() else ', which has lost ranks'}")
        old.down()
    if sync and isinstance(place, OnHosts):
        copy_folder(place.plan.targets, os.getcwd(), say)
    make_room(4 * place.n + 128, f"{count(place.n, 'engine')} and their hub need")
    cluster = _made_for(place, say)
    cluster._start_or_stop(timeout_s)
    _running.append(cluster)
    cells.ready_magics(cluster.view, cluster._engines.host_lost)
    for line in [place.describe("ready"), *place.notes(cluster._engines)]:
        say(line)
    return cluster


def _made_for(place: places.AnyPlace, say: Callable[[str], None]) -> Cluster:
    if isinstance(place, Here | OnHosts):
        return Cluster(place, say)
    from workbench.cluster.elastic.cluster import ElasticCluster  # which stands on this module

    return ElasticCluster(place, say)


def down() -> None:
    """Stop the cluster that :func:`up` started in this kernel; without one, do nothing. Slurm's hosts stay reserved.

    Raises:
        LaunchError: as :meth:`Cluster.down`.
    """
    for cluster in list(_running):
        cluster.down()


def release() -> None:
    """Stop the cluster, and give the hosts back that Slurm or Ray has given to this kernel; without any, do nothing.

    Raises:
        LaunchError: as :meth:`Cluster.down`, or Slurm does not answer.

    Example:
        >>> release()
    """
    if places.held():
        for cluster in list(_running):
            if isinstance(cluster._place, OnHosts) and cluster._place.reservation:
                cluster.down()
    places.release()


def status() -> None:
    """Print what runs, where, and how long the hosts are reserved.

    Example:
        >>> status()
        no cluster is up in this kernel
    """
    for line in [cluster.status() for cluster in _running] or ["no cluster is up in this kernel"]:
        print(line)
    if not _running:
        for reservation in places.held():
            print(reservation.line())


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


def _left_s(deadline: float) -> float:
    return max(1.0, deadline - time.monotonic())
