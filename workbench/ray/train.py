"""A backend of ``ray.train``: its workers become ranks, and the training function calls ``hvd.init()``.

::

    TorchTrainer(train, torch_config=WorkbenchConfig(), scaling_config=ScalingConfig(num_workers=4))
    DataParallelTrainer(train, backend_config=WorkbenchConfig(), scaling_config=…)

With ``TorchTrainer``, ``torch.distributed`` is not set up: gradients are averaged by ``hvd.DistributedOptimizer``, and
not by ``prepare_model``. Checkpoints, reports and restarts are ``ray.train``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from workbench import config
from workbench.executors.jobs import alias_is_wanted
from workbench.job import api
from workbench.ray.places import free_ports, here, meeting_point, variables
from workbench.ray.settings import MiniSettings

_backend: Any = import_module("ray.train.backend")


@dataclass
class WorkbenchConfig(_backend.BackendConfig):  # type: ignore[misc]  # Any
    """What the workers are to do besides training.

    Args:
        timeout_s: deadline until all of them have met in ``init()``.
        nics: names of interfaces, of which the first that a node has is used; by default the one that Ray uses.
        env: further environment variables of the ranks.
        backend: for ``TorchTrainer``, which asks for it; it is not a backend of ``torch.distributed``.
    """

    timeout_s: float = 120
    nics: Sequence[str] | str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    backend: str = "workbench"

    @property
    def backend_cls(self) -> type[WorkbenchBackend]:
        return WorkbenchBackend


class WorkbenchBackend(_backend.Backend):  # type: ignore[misc]  # Any
    """See ``ray.train.backend.Backend``."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: WorkbenchConfig) -> None:
        """The workers are there: tell each which rank it is."""
        places = worker_group.execute(here, MiniSettings(nics=backend_config.nics).interfaces())
        asked = config.ports(backend_config.env)
        ports = worker_group.execute_single(0, free_ports, meeting_point(places), asked)
        common = {"WORKBENCH_INIT_TIMEOUT_S": str(backend_config.timeout_s)}
        alias = alias_is_wanted()
        for rank, each in enumerate(variables(places, ports)):
            worker_group.execute_single(rank, _become, common | each | dict(backend_config.env), alias)

    def on_shutdown(self, worker_group: Any, backend_config: WorkbenchConfig) -> None:
        """The training function has returned on all workers, or failed."""
        worker_group.execute_async(api.shutdown)


def _become(env: Mapping[str, str], as_horovod: bool) -> None:
    config.become(env)
    if as_horovod:
        import_module("workbench.as_horovod")
