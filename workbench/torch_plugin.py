"""What ``import torch`` calls in an environment that has this package: see the entry point in ``pyproject.toml``.

So ``init_process_group("workbench")`` needs no import. Whatever else it needs is imported when a group is made, by its
name, for this file stands below what it loads.

With ``workbench run --as-ddp`` (``WORKBENCH_C10D=1``) scripts that ask for Gloo, for NCCL or for no backend get this
one, too; ``get_backend()`` names what they have asked for. With ``workbench run --watch`` they get what they ask for,
and our engine is told of each call.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any


def register() -> None:
    """Make the backend known to torch.distributed; a second call does nothing."""
    import torch.distributed as dist

    if not dist.is_available() or "workbench" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("workbench", _make, extended_api=True, devices=["cpu"])
    # The way of init_process_group() without init_method. Nothing changes where its variables are set.
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    by_variables = handlers["env"]

    def meet(url: str, *args: Any, **options: Any) -> Iterator[Any]:
        if _names_a_store(url) or not _in_a_job():
            yield from by_variables(url, *args, **options)
        else:
            yield from import_module("workbench.torch.distributed.joining").meet_in_job()

    handlers["env"] = meet
    _give_monitored_barrier(dist)
    _say_how_to_start(dist)
    from workbench import config

    if config.takes_torch_groups():
        _take_over(dist)
    _make_groups(dist.distributed_c10d, watched=bool(config.watch_folder()))


def _make_groups(c10d: Any, watched: bool) -> None:
    """Ask us where a group has the workbench for the CPU alone, or is to be watched."""
    real = c10d._new_process_group_helper
    signature = inspect.signature(real)

    @functools.wraps(real)
    def make(*args: Any, **options: Any) -> tuple[Any, Any]:
        asked = signature.bind(*args, **options).arguments
        if ":workbench" in str(asked["backend"]):
            return import_module("workbench.torch.distributed.devices").make(real, asked)  # type: ignore[no-any-return]
        if not watched:
            return real(*args, **options)  # type: ignore[no-any-return]
        watching, told = import_module("workbench.torch.distributed.watching"), SimpleNamespace(**asked)
        placed = watching.meet(told)
        group, store = real(*args, **options)
        return (watching.watch(group, told, placed) if placed else group), store

    c10d._new_process_group_helper = make


def _give_monitored_barrier(dist: Any) -> None:
    """Have torch's function, which knows Gloo alone, call ours for a group of ours."""
    real = dist.monitored_barrier

    @functools.wraps(real)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        ours = group or dist.group.WORLD
        if ours is None or getattr(ours, "getBackendName", str)() != "workbench":
            return real(group, timeout, wait_all_ranks)
        return ours.monitored_barrier(timeout, wait_all_ranks)

    _replace(dist, monitored_barrier)


def _say_how_to_start(dist: Any) -> None:
    """Have a process that no launcher has started told so; torch would name a variable that is not set."""
    real = dist.init_process_group

    @functools.wraps(real)
    def init_process_group(backend: Any = None, init_method: Any = None, *args: Any, **options: Any) -> Any:
        named = init_method is not None or args or options.keys() & {"store", "rank", "world_size"}
        if "workbench" in str(backend) and not (named or _names_a_store("env://") or _in_a_job()):
            raise ValueError(
                f'init_process_group("{backend}"): no launcher has started this process, so it is not known which rank '
                "of how many it is. Start it with `workbench run -np 2 python ...`, torchrun or mpiexec, or run this "
                "in a %%px cell; or give init_method, rank and world_size."
            )
        return real(backend, init_method, *args, **options)

    _replace(dist, init_process_group)


def _replace(dist: Any, function: Any) -> None:
    """Give a function of torch's the place of its namesake."""
    for module in (dist, sys.modules["torch.distributed.distributed_c10d"]):
        setattr(module, function.__name__, function)


def _take_over(dist: Any) -> None:
    """Give the functions that choose a backend others in their places."""
    asked: list[str] = []  # by the default group
    real = {name: getattr(dist, name) for name in ("init_process_group", "new_group", "get_backend")}

    @functools.wraps(real["init_process_group"])
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> Any:
        asked[:] = [str(backend or "gloo")]
        return real["init_process_group"](_ours(backend or "gloo"), *args, **options)

    @functools.wraps(real["new_group"])
    def new_group(ranks: Any = None, timeout: Any = None, backend: str | None = None, **options: Any) -> Any:
        return real["new_group"](ranks, timeout, backend and _ours(backend), **options)

    @functools.wraps(real["get_backend"])
    def get_backend(group: Any = None) -> str:
        found = str(real["get_backend"](group))
        return asked[0] if "workbench" in found and asked else found

    _replace(dist, init_process_group)
    _replace(dist, new_group)
    dist.get_backend = get_backend  # torch's own files ask the real one


def _ours(backend: str) -> str:
    """A backend's name, or a list by kinds of device, with the workbench in the place of others.

    Example:
        >>> _ours("gloo"), _ours("cpu:gloo,cuda:nccl"), _ours("fake")
        ('workbench', 'cpu:workbench,cuda:nccl', 'fake')
    """
    kinds = str(backend).lower()
    if kinds not in ("gloo", "nccl", "mpi"):
        return kinds.replace("cpu:gloo", "cpu:workbench")
    cuda = kinds != "gloo" and sys.modules["torch"].cuda.is_available()
    return "cpu:workbench,cuda:nccl" if cuda else "workbench"


def _names_a_store(url: str) -> bool:
    from workbench import config

    return config.names_torch_store(numbers="?" not in url)  # behind it the caller has said who this is


def _in_a_job() -> bool:
    """Is this process in a job, or was it started for one?"""
    from workbench import config

    api = sys.modules.get("workbench.job.api")
    return (api is not None and api.is_initialized()) or config.launch().several


def _make(options: Any, backend_options: Any = None) -> Any:
    return import_module("workbench.torch.distributed.joining").make(options, backend_options)
