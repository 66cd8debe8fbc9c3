"""A rank that is an actor of Ray's, from ``RayExecutor.start()`` to ``shutdown()``.

A call is to the job what a cell is in a notebook: one that raises ends what the other ranks wait for, with this rank's
traceback on all of them, and the next call may go on with the same job. And as a notebook its cells, the driver numbers
what it calls: an actor that has not begun what it is about to get is late, and not idle.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from workbench import config
from workbench.common.cell_numbers import CellNumbers
from workbench.job import api
from workbench.job.cells import as_cell
from workbench.ray.needed import ray
from workbench.ray.places import Location, free_ports, here

Task = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]


class BaseHorovodWorker:
    """The actor's class. Its name is Horovod's, and so are those of its methods that Horovod has.

    Args:
        world_rank, world_size: who it is among how many.
    """

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        self._rank, self._numbers = world_rank, CellNumbers(world_rank)
        self.executable: Any = None

    def __repr__(self) -> str:
        return f"rank {self._rank}"  # Ray writes it before each line that the rank prints

    def place(self, nics: Sequence[str]) -> Location:
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
        return socket.gethostname()

    def get_gpu_ids(self) -> list[Any]:
        """The GPUs that Ray has given it."""
        return list(ray.get_gpu_ids())

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        config.become({**config.child_environment(), **{name: str(value) for name, value in env_vars.items()}})

    def env_vars(self) -> dict[str, str]:
        return config.child_environment()

    def start_executable(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        said: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the object that :meth:`execute` hands to functions; ``said`` as there."""
        if executable_cls:
            with as_cell(self._numbers, said):
                self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(
        self, func: Callable[[Any], Any], env: Mapping[str, str] | None = None, said: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of the executable.

        Args:
            func: gets it.
            env: environment variables meanwhile.
            said: by the driver's :class:`workbench.executors.calls.NumberedCalls`.
        """
        with config.changed_environment(**(env or {})), as_cell(self._numbers, said):
            return func(self.executable)

    def call(self, task: Task, env: Mapping[str, str] | None = None, said: Mapping[str, Any] | None = None) -> Any:
        """Call a function of its own arguments; the rest as of :meth:`execute`."""
        func, args, kwargs = task
        with config.changed_environment(**(env or {})), as_cell(self._numbers, said):
            return func(*args, **kwargs)

    def leave(self) -> None:
        """Leave the job, together with the other ranks."""
        api.shutdown()
