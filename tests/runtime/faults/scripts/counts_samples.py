"""An elastic training that counts its samples, until all faults of the job's chaos have happened: torch or numpy.

::

    counts_samples.py torch|numpy SAMPLES
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import workbench as hvd
from workbench import elastic
from workbench.common.chaos import parse
from workbench.job.objects import broadcast_object

WITH_TORCH, SAMPLES, BATCH, WIDTH = sys.argv[1] == "torch", int(sys.argv[2]), 2, 32  # 8 KB: not inside announcements
CHAOS = parse(os.environ["WORKBENCH_CHAOS"])
DATA = np.random.default_rng(1).normal(size=(SAMPLES, WIDTH))


def happened() -> bool:
    """Have all faults?"""
    return len(list(Path(CHAOS.record).iterdir())) >= len(CHAOS.plan())


class Numpy:
    """A model of one matrix; another one on each newcomer, until it is given the right one."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"weights": np.random.default_rng(os.getpid()).normal(size=(WIDTH, WIDTH))}

    def state(self, **values: Any) -> elastic.State:
        return elastic.ObjectState(broadcast_object, hvd.rank, **self.values, **values)

    def step(self, state: Any, x: np.ndarray) -> None:
        gradient = x.T @ (x @ state.weights)
        state.weights = state.weights - 0.001 * hvd.allreduce(gradient, name="gradient")

    def weights(self, state: Any) -> np.ndarray:
        return state.weights


class Torch:
    """The same, with our optimizer."""

    def __init__(self) -> None:
        import torch

        import workbench.torch as torch_hvd

        self.torch, self.elastic = torch, torch_hvd.elastic
        torch.manual_seed(os.getpid())
        self.model = torch.nn.Linear(WIDTH, WIDTH, bias=False).double()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self.optimizer = torch_hvd.DistributedOptimizer(optimizer, self.model.named_parameters())

    def state(self, **values: Any) -> elastic.State:
        return self.elastic.TorchState(self.model, self.optimizer, **values)

    def step(self, state: Any, x: np.ndarray) -> None:
        self.optimizer.zero_grad()
        self.model(self.torch.from_numpy(x)).square().sum().backward()
        self.optimizer.step()

    def weights(self, state: Any) -> np.ndarray:
        return self.model.weight.detach().numpy()


hvd.init()
trained = Torch() if WITH_TORCH else Numpy()
state: Any = trained.state(epoch=0, done=0, used=[])


@elastic.run
def train(state: Any) -> None:
    """What is used is counted in the state, so that a step that is taken back takes its counts back."""
    while not state.used or state.done or not broadcast_object(happened(), root_rank=0, name="happened"):
        if not state.done:
            state.used = [*state.used, np.zeros(SAMPLES)]
        order = np.random.default_rng(state.epoch).permutation(SAMPLES)
        mine = order[state.done :][hvd.rank() * BATCH :][:BATCH]
        trained.step(state, DATA[mine])
        counts = np.zeros(SAMPLES)
        counts[mine] = 1
        state.used[-1] = state.used[-1] + hvd.allreduce(counts, op=hvd.Sum, name="counts")
        state.done += hvd.size() * BATCH
        if state.done >= SAMPLES:
            state.epoch, state.done = state.epoch + 1, 0
        state.commit()
        time.sleep(0.005)


train(state)
weights = trained.weights(state)
everybodys = hvd.allgather(weights[None], name="weights")
assert np.isfinite(weights).all()
assert (everybodys == weights).all(), "the ranks' weights differ"
used = np.array(state.used)
print(f"done: {used.size} samples, lost {(used == 0).sum()}, twice {(used > 1).sum()}", flush=True)
