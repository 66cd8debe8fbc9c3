"""Trains some steps with checkpoints: ``python checkpoint_training.py FOLDER STEPS OPTIMIZER [MODE]``.

Each step's batch depends on the step alone and is divided among the ranks, so any number of ranks trains alike. MODE
``fails`` raises on the last rank after the last step but one; ``leaves`` kills that rank there. Rank 0 prints where it
began and a sum over all weights.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch

import workbench.torch as hvd

KINDS: dict[str, Any] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}


def main() -> None:
    """Train."""
    folder, steps, kind, *mode = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1)).double()
    name, _, sharded = kind.partition("-")
    options = {"sharded": True} if sharded else {}
    optimizer = hvd.DistributedOptimizer(
        KINDS[name](model.parameters()), named_parameters=model.named_parameters(), **options
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    state: Any = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, step=0, losses=[])
    state.checkpoint(folder, every=2)

    @hvd.elastic.run
    def train(state: Any) -> None:
        print("from", state.step, len(state.losses), flush=True)
        while state.step < steps:
            batch = torch.randn(12, 6, generator=torch.Generator().manual_seed(state.step), dtype=torch.float64)
            mine = batch.chunk(hvd.size())[hvd.rank()]
            optimizer.zero_grad()
            loss = model(mine).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            state.losses.append(hvd.allreduce(loss.detach(), name="loss").item())
            state.step += 1
            if mode and state.step == steps - 1 and hvd.rank() == hvd.size() - 1:
                if mode == ["fails"]:
                    raise ZeroDivisionError("on purpose")
                os.kill(os.getpid(), signal.SIGKILL)
            state.commit()

    train(state)
    if hvd.rank() == 0:
        weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
        print("weights", (weights * torch.arange(1.0, len(weights) + 1)).sum().item(), len(state.losses), flush=True)


if __name__ == "__main__":
    main()
