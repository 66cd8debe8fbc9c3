"""The elastic half of :class:`workbench.ray.RayExecutor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import LaunchError
from workbench.ray import elastic
from workbench.ray.jobs.growing import Growing, limits_of
from workbench.ray.jobs.offers import HostDiscovery, Takes
from workbench.ray.ray_logger import calling
from workbench.ray.settings import Args, Callbacks, Func, Kwargs, MiniSettings, own_discovery


class RayHostDiscovery(elastic.RayHostDiscovery):
    """:class:`workbench.ray.elastic.RayHostDiscovery` with the arguments' later names."""

    def __init__(self, use_gpu: bool = False, cpus_per_worker: float = 1, gpus_per_worker: float = 1) -> None:
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)


@dataclass
class ElasticParams:
    """The arguments of :class:`workbench.ray.RayExecutor` that make a job elastic, as Horovod groups them."""

    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_range: Sequence[float] | None = None
    elastic_timeout: float = 600
    override_discovery: bool = True
    cpus_per_worker: float = 1
    use_gpu: bool = False
    gpus_per_worker: float | None = None


class ElasticAdapter:
    """See :class:`workbench.ray.RayExecutor`, which hands everything on.

    Args:
        settings: interfaces; ``discovery``, unless it is overridden.
        min_workers, max_workers, reset_limit, cooldown_range, elastic_timeout: of the job.
        override_discovery: ask Ray which nodes there are.
        use_gpu, cpus_per_worker, gpus_per_worker: what each rank takes.

    Raises:
        ValueError: they contradict each other.
    """

    def __init__(
        self,
        settings: MiniSettings,
        min_workers: int,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[float] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
        *,
        use_gpu: bool = False,
        cpus_per_worker: float = 1,
        gpus_per_worker: float | None = None,
    ) -> None:
        self._limits = limits_of(min_workers, max_workers, reset_limit, cooldown_range, elastic_timeout)
        self._takes = Takes(cpus_per_worker, (gpus_per_worker or 1) * use_gpu)
        self._settings = settings
        self._growing: Growing | None = None
        if override_discovery:
            self._discovery: HostDiscovery = RayHostDiscovery(use_gpu, cpus_per_worker, gpus_per_worker or 1)
        else:
            self._discovery = own_discovery(settings)

    def start(
        self,
        executable_cls: Func | None = None,
        executable_args: Args = None,
        executable_kwargs: Kwargs = None,
        extra_env_vars: Kwargs = None,
    ) -> None:
        if executable_cls or executable_args or executable_kwargs:
            raise ValueError("executable_cls: the ranks of an elastic job may change, so they keep no object.")
        if self._growing:
            raise LaunchError("The job already has its resources. shutdown() releases them.")
        env = extra_env_vars or {}
        self._growing = Growing(self._settings, self._discovery, self._takes, self._limits, env)

    def run(self, fn: Func, args: Args = None, kwargs: Kwargs = None, callbacks: Callbacks = None) -> list[Any]:
        if self._growing is None:
            raise LaunchError("There are no resources for ranks: call start() first.")
        with calling(callbacks or ()) as env:
            return self._growing.run(fn, args, kwargs, env)

    def shutdown(self) -> None:
        growing, self._growing = self._growing, None
        if growing:
            growing.close()
