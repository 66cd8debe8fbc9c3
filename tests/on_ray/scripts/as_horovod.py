"""A driver as users of Horovod wrote them, with every name of horovod.ray that its examples and tests take.

Only the first import is ours. Arguments: a folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import workbench.as_horovod  # noqa: F401 - instead: workbench run --as-horovod

import horovod.torch as hvd  # isort: skip
import ray
import torch
from horovod.ray import ElasticRayExecutor, RayExecutor, ray_logger
from horovod.ray.elastic import RayHostDiscovery, TestDiscovery
from horovod.ray.elastic_v2 import ElasticAdapter, ElasticParams
from horovod.ray.runner import BaseHorovodWorker, MiniSettings
from horovod.ray.strategy import ColocatedStrategy, PGStrategy, create_placement_group

NAMES = [ElasticAdapter, ElasticParams, BaseHorovodWorker, MiniSettings, TestDiscovery]
NAMES += [ColocatedStrategy, PGStrategy, create_placement_group]


class SomeHosts(RayHostDiscovery):
    """A discovery of the user's own, as in ``examples/ray/basic_ray_elastic.py``."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """One host of those that there are."""
        hosts = super().find_available_hosts_and_slots()
        return dict(list(hosts.items())[:1])


class Executable:
    """As in Horovod's tests: it is a rank as soon as it is made."""

    def __init__(self, epochs: int) -> None:
        import horovod.torch as hvd

        hvd.init()
        self.epochs = epochs

    def rank_epoch(self) -> int:
        """The rank times something."""
        return hvd.rank() * self.epochs


def train(epochs: int) -> float:
    """A model, its optimizer and a state, as ``examples/ray/pytorch_ray_elastic.py`` has them."""
    hvd.init()
    torch.manual_seed(42)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def on_state_reset() -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * hvd.size()

    @hvd.elastic.run
    def go(state: Any) -> None:
        for state.epoch in range(state.epoch, epochs + 1):  # noqa: B020 - as users write it
            state.optimizer.zero_grad()
            loss = state.model(torch.ones(4, 2) * hvd.rank()).pow(2).mean()
            loss.backward()
            state.optimizer.step()
            if hvd.rank() == 0:
                ray_logger.log({"epoch": state.epoch})
            state.commit()

    state = hvd.elastic.TorchState(model, optimizer, epoch=1, batch=0)
    state.register_reset_callbacks([on_state_reset])
    go(state)
    return float(hvd.allreduce(model.weight.detach().sum(), name="sum"))


def main(folder: str) -> None:
    """Both executors."""
    found: dict[str, Any] = {}
    ray.init(address="auto", log_to_driver=False)
    settings = RayExecutor.create_settings(timeout_s=60)
    job = RayExecutor(settings, num_hosts=2, num_slots=2, use_gpu=False, cpus_per_slot=1)
    job.start(executable_cls=Executable, executable_args=[2])
    found["executed"] = job.execute(lambda w: w.rank_epoch())
    job.shutdown()
    elastic = ElasticRayExecutor.create_settings(verbose=2)
    elastic.discovery = SomeHosts(cpus_per_slot=1)
    executor = ElasticRayExecutor(elastic, cpus_per_slot=1, override_discovery=False)
    executor.start()
    heard: list[Any] = []
    found["trained"] = executor.run(lambda: train(3), callbacks=[heard.append])
    found["heard"] = [each["epoch"] for each in heard]
    Path(folder, "found").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
