"""A driver: trainers of ray.train with our backend. Argument: a folder for what they store."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from workbench.ray import WorkbenchConfig


def train(config: dict[str, Any]) -> None:
    """Three steps of a linear layer, each rank with its own row; each rank leaves a file."""
    import workbench.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    begins = [parameter.detach().tolist() for parameter in model.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        row = torch.eye(4, dtype=torch.float64)[hvd.rank() :: hvd.size()]
        (model(row) - 1).pow(2).mean().backward()
        optimizer.step()
    context = ray.train.get_context()
    found = {
        "begins": begins,
        "ends": [parameter.detach().tolist() for parameter in model.parameters()],
        "ranks": [hvd.rank(), context.get_world_rank(), context.get_local_rank(), hvd.local_rank()],
        "size": hvd.size(),
        "torch": torch.distributed.is_initialized(),
        "mark": os.environ["MARK"],
    }
    Path(config["folder"], f"{config['name']}.{hvd.rank()}").write_text(json.dumps(found))
    if config["fails"] == hvd.rank():
        raise ValueError("there is no data")
    hvd.barrier()
    ray.train.report({"rank": hvd.rank()})


def main(folder: str) -> None:
    """Run each."""
    ray.init(address="auto", log_to_driver=False)
    ours, four = WorkbenchConfig(env={"MARK": "7"}), ScalingConfig(num_workers=4)
    for name, fails in (("torch", -1), ("plain", 1)):
        config = {"folder": folder, "name": name, "fails": fails}
        stored = RunConfig(storage_path=f"{folder}/stored")
        try:
            if name == "plain":
                DataParallelTrainer(
                    train, train_loop_config=config, backend_config=ours, scaling_config=four, run_config=stored
                ).fit()
            else:
                TorchTrainer(
                    train, train_loop_config=config, torch_config=ours, scaling_config=four, run_config=stored
                ).fit()
        except Exception as error:  # noqa: BLE001 - Ray's, which the test reads
            print(f"{name} failed: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
