"""``group_training.py ddp|fsdp|exact RANKS FOLDER``: the last rank kills itself once, and another takes its place."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import workbench.torch as hvd

torch.set_num_threads(1)
kind, ranks, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
dead = folder / "dead"
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
X = torch.randn(24, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def make():
    """Of numbers that are this process's alone: the state makes them alike."""
    return nn.Sequential(nn.Linear(8, 13), nn.Tanh(), nn.Dropout(0.2 * (kind == "exact")), nn.Linear(13, 5)).double()


hvd.init()
torch.manual_seed(os.getpid() if hvd.rank() else 0)
whole = make()
state = hvd.elastic.TorchState(whole, sgd(whole.parameters()), step=0)
state.checkpoint(folder / "checkpoints", every=100)


@hvd.elastic.run(exact=kind == "exact", shards=4)
def train(state):
    """One commit after each step."""
    print(f"begins with {hvd.size()} at {state.step}", flush=True)
    dist.init_process_group("workbench")
    if kind == "fsdp":
        model = make()
        for layer in (model[0], model[3], model):
            fully_shard(layer)
        state.load_into(model=model, optimizer=sgd(model.parameters()))
    else:
        model = DistributedDataParallel(whole)
    while state.step < 12:
        if state.step == 9 and hvd.size() < ranks:  # until one comes in the dead one's place
            time.sleep(0.05)
            state.commit()
            continue
        state.optimizer.zero_grad()
        shares = (X[shard::4] for shard in state.shards()) if kind == "exact" else [X[hvd.rank() :: hvd.size()]]
        for share in shares:
            loss = model(share).square().mean()
            if state.step == 5 and hvd.rank() == ranks - 1 > 0 and not dead.exists():
                dead.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
        state.optimizer.step()
        state.step += 1
        state.commit()


train(state)
weights = [getattr(each, "full_tensor", lambda each=each: each)().detach() for each in state.model.parameters()]
torch.save(weights, folder / f"weights{hvd.rank()}.pt")
