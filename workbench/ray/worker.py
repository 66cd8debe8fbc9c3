"""A rank that is an actor of Ray's, from ``RayExecutor.start()`` to ``shutdown()``.

A call is to the job what a cell is in a notebook: one that raises ends what the other ranks wait for, with this rank's
traceback on all of them, and the next call may go on with the same job.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from workbench import api, config
from workbench.context import HOLDER
from workbench.faults.notebook_hooks import cell_traceback
from workbench.ray.jobs.places import Place, free_ports, here
from workbench.ray.needed import ray

Task = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]


class BaseHorovodWorker:
    """The actor's class. Its name is Horovod's, and so are those of its methods that Horovod has.

    Args:
        world_rank, world_size: who it is among how many.
    """

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        self._rank = world_rank
        self.executable: Any = None

    def __repr__(self) -> str:
        return f"rank {self._rank}"  # Ray writes it before each line that the rank prints

    def place(self, nics: Sequence[str]) -> Place:
        """Where it is."""
        return here(nics)

    def free_ports(self, address: str, asked: tuple[int, int]) -> tuple[int, int]:
        """Two that are free there."""
        return free_ports(address, asked)

    def become(self, variables: Mapping[str, str], as_horovod: bool) -> None:
        """Be the rank that these environment variables describe; ``import horovod`` may mean the workbench there."""
        config.become(variables)
        if as_horovod:
            import_module("workbench.as_horovod")

    def node_id(self) -> str:
        """Ray's id of its node."""
        return str(ray.get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """Its host's name."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[Any]:
        """The GPUs that Ray has given it."""
        return list(ray.get_gpu_ids())

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Set environment variables."""
        config.become({**config.child_environment(), **{name: str(value) for name, value in env_vars.items()}})

    def env_vars(self) -> dict[str, str]:
        """Its environment."""
        return config.child_environment()

    def start_executable(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the object that :meth:`execute` hands to functions."""
        if executable_cls:
            with _as_cell():
                self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any], env: Mapping[str, str] | None = None) -> Any:
        """Call a function of the executable; with these environment variables meanwhile."""
        with config.changed_environment(**(env or {})), _as_cell():
            return func(self.executable)

    def call(self, task: Task, env: Mapping[str, str] | None = None) -> Any:
        """Call a function of its own arguments; with these environment variables meanwhile."""
        func, args, kwargs = task
        with config.changed_environment(**(env or {})), _as_cell():
            return func(*args, **kwargs)

    def leave(self) -> None:
        """Leave the job, together with the other ranks."""
        api.shutdown()


@contextlib.contextmanager
def _as_cell() -> Iterator[None]:
    """What happens in the block is told to the other ranks, as of a cell."""
    if (job := HOLDER.find()) is not None:
        job.cell_begins()
    try:
        yield
    except Exception as error:
        if (job := HOLDER.find()) is not None:
            job.cell_raised(cell_traceback(error))
        raise
    finally:
        if (job := HOLDER.find()) is not None:
            job.cell_ends()


__all__ = ["BaseHorovodWorker"]
