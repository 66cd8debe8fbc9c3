# torch_resnet.py, converted by hand.
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import workbench.torch as hvd


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)) + x)


hvd.init()
torch.manual_seed(5)
data = TensorDataset(torch.randn(48, 4, 6, 6), torch.randint(0, 5, (48,)))
order = DistributedSampler(data, hvd.size(), hvd.rank())
batches = DataLoader(data, 12 // hvd.size(), sampler=order)
model = nn.Sequential(Block(4), Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for epoch in range(2):
    order.set_epoch(epoch)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
