# accelerate_simple.py, converted by hand.
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import workbench.torch as hvd

hvd.init()
torch.manual_seed(7)
x = torch.randn(48, 6)
data = TensorDataset(x, (x[:, 0] > 0).long())
order = DistributedSampler(data, hvd.size(), hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), model.named_parameters())
for epoch in range(2):
    order.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=6, sampler=order):
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
