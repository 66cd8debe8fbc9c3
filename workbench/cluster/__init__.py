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

From the second start on, controller and engines are forks of a server, :mod:`workbench.launch.forks.server`.

On several hosts it is as :mod:`workbench.cluster.engines_on_hosts` draws it. All files are in one temporary folder on
each host, the IPython directory of these processes. The user's own IPython directory and other ipyparallel clusters
are not changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench import config
from workbench.cluster import cells, places
from workbench.cluster.cluster import RUNNING, Cluster, Speaker, current
from workbench.cluster.elastic_cluster import ElasticCluster
from workbench.cluster.engines_here import Here
from workbench.cluster.engines_on_hosts import OnHosts
from workbench.cluster.panel.show import show_panel
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.launch import site
from workbench.launch.start.gpus import GpuChoice
from workbench.launch.sync import sync as copy_folder
from workbench.machine import make_room


def up(
    n: int | None = None,
    *,
    hosts: Sequence[str] | str | None = None,
    slurm: Mapping[str, Any] | None = None,
    ray: Mapping[str, Any] | None = None,
    k8s: Mapping[str, Any] | None = None,
    min_np: int | None = None,
    sync: bool = False,
    gpus: GpuChoice = None,
    ddp: bool = False,
    timeout_s: float = 60.0,
    mpiexec: str = "",
    quiet: bool = False,
) -> Cluster:
    """Start ``n`` ranks as ipyparallel engines, engine id = rank, and make ``%px`` ready.

    If a healthy cluster of the same size, hosts and GPUs is already running, it is returned; any other is stopped
    first. More ranks than cores work. Each rank gets ``max(1, cores // n)`` threads, and its own cores if the machine
    is free: ``WORKBENCH_BIND``, see :mod:`workbench.launch.start.binding`.

    On several hosts the engines are ranks as ``workbench run -H`` starts them, after the same rehearsal: hosts are
    reached by ssh without a prompt, the notebook's folder must be on all of them, and a problem is named with its host
    before anything starts. They communicate over TCP; ``WORKBENCH_BACKEND=mpi`` has MPI's launcher start them, and only
    then ``MPI.COMM_WORLD`` has all of them. All messages between the notebook and the engines are encrypted.

    Args:
        n: how many ranks; by default the hosts' slots; here what ``workbench.toml`` says (``launch/site.py``), else 2.
        hosts: ``["a:2", "b:2"]``: names and how many ranks each takes. By default those that ``workbench.toml`` names,
            else this machine; ``[]`` for this machine in any case.
        slurm: hosts that Slurm reserves: ``dict(nodes=2, tasks_per_node=2, time="30:00")``.
        ray: places in the Ray cluster that this kernel is connected to: ``dict(gpus=1)``, or ``{}``. All words of these
            three: :class:`workbench.cluster.places.ClusterSpec`. What Slurm or Ray gave stays over :func:`down` and
            ``up``, until :func:`release`, the end of the kernel, or of its time.
        k8s: ``{}``, in JupyterLab of our chart: the chart's pods that are ready, by ssh.
        min_np: a cell under ``hvd.elastic.run`` goes on while so many engines live, and ``resize(n)`` brings others in;
            on this machine only, and without MPI. See :mod:`workbench.cluster.elastic_cluster`.
        sync: copy the notebook's folder to the hosts first, but for what ``.gitignore`` names: where they share none.
        gpus: which GPU each rank sees, as its ``cuda:0``. By default all, and ``set_device(hvd.local_rank())`` chooses.
            ``"auto"``: one for each rank, in turn where there are more ranks; a number: the first so many; a sequence
            of numbers and uuids: these; 0: none. An outer ``CUDA_VISIBLE_DEVICES`` says which there are.
        ddp: cells that ask ``torch.distributed`` for Gloo, NCCL or no backend get the workbench's.
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
    if config.launch().several:
        raise LaunchError("This process is a rank of a job. Call cluster.up() in the notebook, without %%px.")
    log = Speaker(quiet)
    place = places.find(places.ClusterSpec(n, hosts, slurm, ray, k8s, gpus, mpiexec, min_np), site.read(), log, release)
    for old in list(RUNNING):
        if places.fits(old._asked, place, gpus) and old.ddp == ddp and old.healthy():
            for line in [old._place.describe("already running"), *places.time_left(old._place)]:
                log(line)
            return old
        log(f"stopping the cluster of {count(old.n, 'rank')}{'' if old.healthy() else ', which has lost ranks'}")
        old.down()
    if sync and isinstance(place, OnHosts):
        copy_folder(place.plan.targets, os.getcwd(), log)
    make_room(4 * place.n + 128, f"{count(place.n, 'engine')} and their hub need")
    cluster = _made_for(place, log, ddp)
    cluster._start_or_stop(timeout_s)
    RUNNING.append(cluster)
    cells.ready_magics(cluster.view)
    for line in [place.describe("ready"), *place.notes(cluster._engines)]:
        log(line)
    return cluster


def _made_for(place: places.AnyPlace, log: Callable[[str], None], ddp: bool) -> Cluster:
    if isinstance(place, Here | OnHosts):
        return Cluster(place, log, ddp)
    return ElasticCluster(place, log, ddp)


def down() -> None:
    """Stop the cluster that :func:`up` started in this kernel; without one, do nothing. Slurm's hosts stay reserved.

    Raises:
        LaunchError: as :meth:`Cluster.down`.
    """
    for cluster in list(RUNNING):
        cluster.down()


def release() -> None:
    """Stop the cluster, and release the hosts that Slurm or Ray has reserved for this kernel; without any, do nothing.

    Raises:
        LaunchError: as :meth:`Cluster.down`, or Slurm does not answer.

    Example:
        >>> release()
    """
    if places.held():
        for cluster in list(RUNNING):
            if isinstance(cluster._place, OnHosts) and cluster._place.reservation:
                cluster.down()
    places.release()


def status() -> None:
    """Print what runs, where, and how long the hosts are reserved.

    Example:
        >>> status()
        no cluster is up in this kernel
    """
    for line in [cluster.status() for cluster in RUNNING] or ["no cluster is up in this kernel"]:
        print(line)
    if not RUNNING:
        for reservation in places.held():
            print(reservation.line())


def rescue(timeout_s: float = 60.0) -> Cluster:
    """Repair the cluster that :func:`up` started in this kernel, see :meth:`Cluster.rescue`.

    Raises:
        LaunchError: there is none, or as :func:`up`.
    """
    cluster = current()
    if cluster is None:
        raise LaunchError("There is no cluster to rescue in this kernel: start one with cluster.up().")
    cluster.rescue(timeout_s)
    return cluster


cells.explain_magics()


def watch() -> Any:
    """What each rank is at, live: computing, or waiting, for whom, in which line; its steps, bytes, cores and memory.

    Returns:
        In a notebook a panel that is up to date while cells run, until ``down``: show it in a cell of its own, or in a
        view of its own by JupyterLab's "Create New View for Output". In a terminal a table is printed, once a second,
        until Ctrl-C; nothing is returned.

    Raises:
        LaunchError: no cluster is up in this kernel.

    Example:
        >>> watch()  # doctest: +SKIP
    """
    cluster = current()
    if cluster is None:
        raise LaunchError("There is no cluster to watch in this kernel: start one with cluster.up().")
    return show_panel(cluster)


__all__ = ["Cluster", "current", "down", "release", "rescue", "status", "up", "watch"]


def __dir__() -> list[str]:
    return sorted(__all__)
