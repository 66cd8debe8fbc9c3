"""Exact training of a small CNN, for so many steps, or until all faults of the job's chaos have happened.

::

    exact_training.py STEPS [PAUSE_S]        0 steps: until the faults have happened
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import workbench.torch as hvd
from workbench.common.chaos import parse

torch.set_num_threads(1)
hvd.init()
steps, pause_s = int(sys.argv[1]), float((*sys.argv, "0.005")[2])
chaos = os.environ.get("WORKBENCH_CHAOS", "")
generator = torch.Generator().manual_seed(1)
X, Y = torch.randn(101, 1, 8, 8, generator=generator), torch.randint(0, 3, (101,), generator=generator)
torch.manual_seed(0 if hvd.rank() == 0 else os.getpid())  # the first sync makes them alike
model = torch.nn.Sequential(
    *(torch.nn.Conv2d(1, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.Dropout(0.3)),
    *(torch.nn.Flatten(), torch.nn.Linear(216, 8)),
)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, taken=[])
samples = hvd.elastic.ShardBatches(X, shards=4, batch_size=3)


def over(step: int) -> bool:
    """Is the training to end?"""
    if steps:
        return step >= steps
    mine = len(list(Path(parse(chaos).record).iterdir())) >= len(parse(chaos).plan())
    return bool(hvd.broadcast_object(mine, root_rank=0, name="over"))


@hvd.elastic.run(exact=True, shards=4)
def train(state: Any) -> None:
    """One commit after each step."""
    print(f"begins with {hvd.size()} at {state.exact.step}", flush=True)
    while not over(state.exact.step):
        step = state.exact.step
        for shard in state.shards():
            part = samples(step, shard)
            if len(part):
                (F.cross_entropy(model(X[part]), Y[part]) * samples.weight(step, shard)).backward()
        optimizer.step()
        state.taken.append(step)
        state.commit()
        time.sleep(pause_s)


train(state)
assert state.taken == list(range(state.exact.step))  # each step counts once
trained = [*model.state_dict().values(), *(each["exp_avg"] for each in optimizer.state.values())]
digest = hashlib.sha256(b"".join(value.reshape(-1).view(torch.uint8).numpy().tobytes() for value in trained))
print(f"digest {state.exact.step} {digest.hexdigest()} rank {hvd.rank()}", flush=True)
