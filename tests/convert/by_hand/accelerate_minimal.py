# accelerate_minimal.py, converted by hand.
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import workbench.torch as hvd

hvd.init()
torch.manual_seed(1)
line = torch.linspace(-1, 1, 40).unsqueeze(1)
data = TensorDataset(line, line**3)
order = DistributedSampler(data, hvd.size(), hvd.rank())
model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.02), model.named_parameters())
for epoch in range(3):
    order.set_epoch(epoch)
    for source, target in DataLoader(data, batch_size=5, sampler=order):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(source), target).backward()
        optimizer.step()
