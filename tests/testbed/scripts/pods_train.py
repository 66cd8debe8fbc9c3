"""Trains a small network in double precision on all ranks' shares of 32 samples; rank 0 prints the weights."""

import torch
from torch.nn.functional import mse_loss

import workbench.torch as hvd

hvd.init()
torch.manual_seed(0)
x, y = torch.randn(32, 8, dtype=torch.float64), torch.randn(32, 1, dtype=torch.float64)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
mine = slice(hvd.rank(), None, hvd.size())
for step in range(50):
    optimizer.zero_grad()
    mse_loss(model(x[mine]), y[mine]).backward()
    optimizer.step()
    if step == 0 and hvd.rank() == 0:
        print("first step", flush=True)
if hvd.rank() == 0:
    print("weights", torch.cat([each.detach().flatten() for each in model.parameters()]).tolist(), flush=True)
