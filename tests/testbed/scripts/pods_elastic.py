"""Trains to the bit, however many ranks there are and whoever dies: slowly, until a file beside this one says fast."""

import os
import sys
import time

import torch
from torch.nn.functional import mse_loss

import workbench.torch as hvd

STEPS, SHARDS = 300, 6

hvd.init()
torch.manual_seed(0)
x, y = torch.randn(96, 8, dtype=torch.float64), torch.randn(96, 1, dtype=torch.float64)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
samples = hvd.elastic.ShardBatches(x, shards=SHARDS, batch_size=4)


def is_fast():
    """Has the test seen all that it wanted to see?"""
    return "fast" in sys.argv or os.path.exists(f"{__file__}.fast")


@hvd.elastic.run(exact=True, shards=SHARDS)
def train(state):
    """Until all steps are done."""
    if hvd.rank() == 0:
        print(f"begins with {hvd.size()} at {state.exact.step}", flush=True)
    while state.exact.step < STEPS:
        step = state.exact.step
        optimizer.zero_grad()
        for shard in state.shards():
            chosen = samples(step, shard)
            mse_loss(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
        state.commit()
        time.sleep(0.0 if is_fast() else 0.5)


train(hvd.elastic.TorchState(model=model, optimizer=optimizer))
if hvd.rank() == 0:
    print("weights", torch.cat([each.detach().flatten() for each in model.parameters()]).tolist(), flush=True)
