"""How ranks come together: processes in ``init()``, in an elastic job again if one is lost meanwhile; or threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from workbench import config
from workbench.config import Launch, Settings
from workbench.core.engine import Engine
from workbench.core.messages import Raised
from workbench.errors import LaunchError, WorkbenchError
from workbench.job.context import HOLDER, Context
from workbench.job.notifications import NOTIFICATIONS
from workbench.job.process_sets import AbsentSets, ProcessSet, collect
from workbench.job.start import start, telling_failures
from workbench.machine import cores
from workbench.runtime.faults.notebook_hooks import after_a_loss
from workbench.runtime.trace.epochs import keep
from workbench.runtime.trace.timeline import begin_timeline
from workbench.transport.bootstrap.launcher_around import note_member
from workbench.transport.elastic import ElasticBootstrap
from workbench.transport.select import Bootstrap, find_ranks

T = TypeVar("T")
Meet = Callable[[Settings], Bootstrap]

_RANKS_PER_CORE = 4  # more of them on a core have more time to start

log = logging.getLogger("workbench")


def join_job(
    comm: Any, process_sets: Sequence[ProcessSet], meet: Meet | None = None
) -> tuple[Context, list[tuple[int, ...]]]:
    """Join the job that the launcher started.

    Args:
        comm: see :func:`workbench.job.api.init`.
        process_sets: this rank's.
        meet: finds the ranks, where that is not by what the launcher has said.

    Returns:
        The running job, and the process sets to register in it.

    Raises:
        WorkbenchError, ValueError: as ``init()``.
    """
    _refuse_beside_another()
    if comm is None and (why := config.refusal()):
        raise LaunchError(f"init(): {why}")
    note_member(config.member_file())
    while True:
        started = config.launch()
        settings = with_time_to_start(config.settings(), started)
        bootstrap = meet(settings) if meet else find_ranks(started, settings, comm)
        try:
            with telling_failures(bootstrap):
                there, absent = fitting(process_sets, bootstrap)
                sets = collect(there, bootstrap)
            context = start(bootstrap, _with_a_file_of_its_own(settings, bootstrap), begin_timeline)
        except BaseException as error:
            if not isinstance(bootstrap, ElasticBootstrap):
                raise
            if not (isinstance(error, WorkbenchError) and bootstrap.over()):
                bootstrap.withdraw()
                raise
            log.warning("elastic: epoch %d ended before it had begun: %s", bootstrap.epoch, error)
        else:
            context.part(AbsentSets)[:] = absent
            if isinstance(bootstrap, ElasticBootstrap):
                world = context.world
                places = (world.local_rank, world.local_size, world.cross_rank, world.cross_size)
                config.set_horovod_numbers(world.rank, world.size, *places)
            _listen(bootstrap, context)
            return context, sets


def _refuse_beside_another() -> None:
    """The ranks of a job whose modules were deleted do not wait for a second one in the same process.

    Raises:
        LaunchError: there is such a job.
    """
    if any(each.name == "workbench-engine" and not isinstance(each, Engine) for each in threading.enumerate()):
        raise LaunchError(
            "init(): this process is already in a job, which still runs in threads that cannot be reached: workbench "
            f"was deleted from sys.modules and imported again, but the job was not ended. {after_a_loss()}"
        )


def with_time_to_start(settings: Settings, started: Launch) -> Settings:
    """Settings whose deadline of ``init()`` grows with the ranks that share a core, unless somebody has set another.

    Example:
        >>> with_time_to_start(Settings(), Launch("mpich", rank=0, size=4, local_rank=0, local_size=1)).init_timeout_s
        120.0
    """
    crowd = started.local_size / len(cores()) / _RANKS_PER_CORE
    if crowd <= 1 or settings.init_timeout_s != Settings.init_timeout_s:
        return settings
    return replace(settings, init_timeout_s=settings.init_timeout_s * crowd)


def fitting(sets: Sequence[ProcessSet], bootstrap: Bootstrap) -> tuple[list[ProcessSet], list[ProcessSet]]:
    """Which process sets can be registered, and which an elastic job keeps until it has their ranks again.

    A set of all ranks needs no registration. In a job of fixed size, what does not fit is the caller's error.
    """
    if not isinstance(bootstrap, ElasticBootstrap):
        return list(sets), []
    there = [one for one in sets if not one.ranks or (max(one.ranks) < bootstrap.size > len(one.ranks))]
    absent = [one for one in sets if one not in there]
    for one in absent:
        if one.ranks and max(one.ranks) >= bootstrap.size:
            log.warning("elastic: the process set %s must wait: the job has size %d now.", one.ranks, bootstrap.size)
    return there, absent


def _with_a_file_of_its_own(settings: Settings, bootstrap: Bootstrap) -> Settings:
    """Each epoch has its own timeline, and none is written over: ``t.json``, then ``t.epoch2.json`` and so on."""
    if not isinstance(bootstrap, ElasticBootstrap) or bootstrap.epoch < 2 or not settings.timeline:
        return settings
    if settings.timeline.lower() == "dynamic":
        return settings
    path = Path(settings.timeline)
    return replace(settings, timeline=str(path.with_name(f"{path.stem}.epoch{bootstrap.epoch}{path.suffix}")))


def _listen(bootstrap: Bootstrap, context: Context) -> None:
    """Hear of the launcher which ranks are lost, come and go."""
    if isinstance(bootstrap, ElasticBootstrap):
        bootstrap.watch(context.lost, NOTIFICATIONS.hosts_updated)


def leave_job(context: Context, for_good: bool) -> bool:
    """Leave the job; False if not all ranks left together.

    Args:
        context: the job.
        for_good: and not to begin the next epoch.
    """
    bootstrap = context.bootstrap
    if isinstance(bootstrap, ElasticBootstrap):
        keep(bootstrap.epoch, context.rank, context.timeline.recorder)
    together = context.leave(context.settings.shutdown_timeout_s)
    if for_good and isinstance(bootstrap, ElasticBootstrap):
        bootstrap.out()
    return together


def run_threads(n: int, function: Callable[[], T], timeout_s: float = 60.0) -> list[T]:
    """Run ``function()`` on n ranks that are threads of this process, each with the whole runtime.

    Inside it ``rank()``, ``allreduce()`` and the rest work as under mpiexec, and ``init()`` does nothing more.

    Returns:
        The results by rank.

    Raises:
        BaseException: what the first failing rank raised.

    Example:
        >>> import numpy as np
        >>> from workbench.job import api
        >>> run_threads(3, lambda: api.allreduce(np.ones(2), op=api.Sum).tolist())
        [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """
    from workbench.transport.host.threads import ThreadBootstrap, ThreadLink, spawn

    first: list[BaseException] = []  # what a rank raised by itself, before the others raised because of it

    def run(link: ThreadLink) -> T:
        context = start(ThreadBootstrap(link.mailboxes, link.rank), config.settings())
        HOLDER.set(context, thread_only=True)
        try:
            return function()
        except BaseException as error:
            first.append(error)
            context.engine.report(Raised(link.rank, repr(error)))
            raise
        finally:
            HOLDER.set(None, thread_only=True)
            context.leave(context.settings.shutdown_timeout_s)

    try:
        return spawn(n, run, timeout_s)
    except BaseException:
        if first:
            raise first[0] from None
        raise
