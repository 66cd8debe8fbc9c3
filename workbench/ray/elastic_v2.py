"""The elastic half of :class:`workbench.ray.RayExecutor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.ray import elastic
from workbench.ray.jobs.growing import Growing, limits_of
from workbench.ray.jobs.offers import HostDiscovery, Takes
from workbench.ray.settings import Args, Callbacks, Executable, Func, Kwargs, MiniSettings, own_discovery


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
        params: of the job.

    Raises:
        ValueError: they contradict each other.
    """

    def __init__(self, settings: MiniSettings, params: ElasticParams) -> None:
        rest_s, gpus = params.cooldown_range, params.gpus_per_worker or 1
        limits = limits_of(params.min_workers, params.max_workers, params.reset_limit, rest_s, params.elastic_timeout)
        takes = Takes(params.cpus_per_worker, gpus * params.use_gpu)
        if params.override_discovery:
            discovery: HostDiscovery = RayHostDiscovery(params.use_gpu, params.cpus_per_worker, gpus)
        else:
            discovery = own_discovery(settings)
        self._growing = Growing(settings, discovery, takes, limits)

    def start(self, executable: Executable, extra_env_vars: Kwargs) -> None:
        if any(executable):
            raise ValueError("executable_cls: the ranks of an elastic job may change, so they keep no object.")
        self._growing.start(extra_env_vars or {})

    def run(self, fn: Func, args: Args = None, kwargs: Kwargs = None, callbacks: Callbacks = None) -> list[Any]:
        return self._growing.run(fn, args, kwargs, callbacks)

    def shutdown(self) -> None:
        self._growing.close()
