"""Training with sharded parameters or gradients; rank 1 is killed in the third step, at the second layer."""

import os
import signal
import sys

import torch

import workbench.torch as hvd

STAGE, WHEN = sys.argv[1:]
hvd.init()
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
if STAGE == "parameters":
    hvd.shard_parameters(model)
inner = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sharded=STAGE)
done: list[int] = []


def dies(*_: object) -> None:
    """Of a module's hooks."""
    if len(done) == 2 and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


layer = model[1]
{"forward": layer.register_forward_pre_hook, "backward": layer.register_full_backward_pre_hook}[WHEN](dies)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    done.append(step)
print("came to the end")
