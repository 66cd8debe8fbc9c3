"""How ``init_process_group("workbench")`` comes to a job, and ``new_group()`` to a process set.

1. In a job of ours (a notebook's engines, ``workbench run``), and where mpiexec, Slurm or torchrun has started this
   process: to that job, as ``init()`` does. Where the launcher has not set MASTER_ADDR and RANK, the job itself says
   who is there, and nothing listens anywhere.
2. In any other process (``mp.spawn``): to a job whose ranks meet at the store that ``init_process_group`` was given.
   What they write there is sealed, for a TCPStore is open to everybody on its port.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workbench import config
from workbench.errors import LaunchError
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.job.objects import broadcast_object
from workbench.job.process_sets import ProcessSet, add_by_members
from workbench.torch.distributed.group import ProcessGroup
from workbench.transport.bootstrap.store import StoreBootstrap
from workbench.transport.bootstrap.torch_store import StoreBoard


@dataclass
class BegunByGroup:
    """Was the job begun for the default group, with which it then ends? And the folders of this rank's stores."""

    begun: bool = False
    folders: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list)


def meet_in_job() -> Iterator[tuple[Any, int, int]]:
    """A rendezvous of torch's: the store, rank and number of ranks of the job that this process was started for."""
    _begin(api.init)
    if api.cross_size() > 1:
        raise LaunchError(
            "init_process_group(): the ranks are on several hosts, and the launcher has set neither MASTER_ADDR nor "
            "MASTER_PORT. Set them to the host of rank 0 and a free port there, or start with workbench run -H."
        )
    # In folders that only this user can enter: a store that listened would be open to everybody on the machine. Each
    # rank has a name of its own for the file: a store hangs whose file another rank deletes while it ends.
    folder = tempfile.TemporaryDirectory(prefix="workbench-store-")
    HOLDER.get().part(BegunByGroup).folders.append(folder)
    store = Path(folder.name, "store")
    if api.rank() == 0:
        store.touch()
    first = broadcast_object(str(store), 0)
    if api.rank():
        store.hardlink_to(first)
    api.barrier()  # rank 0 may be about to end the group, and to delete it
    yield dist.FileStore(str(store), api.size()), api.rank(), api.size()


def make(options: Any, backend_options: Any = None) -> ProcessGroup:
    """The group that torch asks for; its ranks call this, and no others.

    Args:
        options: torch's: the store, rank, size, timeout, the group's name and ranks.
        backend_options: none are known.

    Raises:
        LaunchError: the ranks could not connect, or are other ones in the job that they are in.
    """
    return ProcessGroup(options.group_id, *place(options))


def place(options: Any) -> tuple[ProcessSet, timedelta, Callable[[], None]]:
    """Where a group stands in the job, which begins with the default one: members, timeout, and what ends with it."""
    check_torch(torch.__version__)
    if dist.is_initialized():
        return add_by_members(options.global_ranks_in_group), options.timeout, lambda: None
    rank, size = options.group_rank, options.group_size
    _begin(lambda: _join(options.store, rank, size, options.timeout))
    if (api.rank(), api.size()) != (rank, size):
        raise LaunchError(
            f"init_process_group(rank={rank}, world_size={size}): this process is rank {api.rank()} of {api.size()} in "
            "the job that it is in. Give these numbers, or none."
        )
    HOLDER.get().unfinished.add(dist.destroy_process_group)  # another job needs another group
    return api.global_process_set, options.timeout, _leave


def check_torch(version: str) -> None:
    """Refuse what this backend was never tested with: torch has renamed what a group's methods are called.

    Example:
        >>> check_torch("2.13.0+cpu")
        >>> check_torch("2.6.0")
        Traceback (most recent call last):
        workbench.errors.LaunchError: init_process_group("workbench") needs torch 2.13 or newer, and this is 2.6.0.
    """
    if tuple(map(int, version.split(".")[:2])) < (2, 13):
        raise LaunchError(f'init_process_group("workbench") needs torch 2.13 or newer, and this is {version}.')


def _begin(join: Any) -> None:
    if not api.is_initialized():
        join()
        HOLDER.get().part(BegunByGroup).begun = True


def _leave() -> None:
    """With the default group the job ends that was begun for it."""
    context = HOLDER.find()
    if context is None:
        return
    context.unfinished.discard(dist.destroy_process_group)
    mine = context.part(BegunByGroup)
    if mine.begun:
        mine.begun = False
        api.shutdown()


def _join(store: Any, rank: int, size: int, timeout: timedelta) -> None:
    started = config.launch()
    if started.launcher == "elastic" or (started.several and (started.rank, started.size) == (rank, size)):
        return api.init()
    launch = config.Launch("torchrun", rank, size)

    def meet(settings: config.Settings) -> StoreBootstrap:
        limit_s = min(timeout.total_seconds(), settings.init_timeout_s)
        board = StoreBoard(dist.PrefixStore("workbench", store), "the store of init_process_group()", limit_s)
        return StoreBootstrap(launch, replace(settings, init_timeout_s=limit_s), board)

    api.init_by(meet)
