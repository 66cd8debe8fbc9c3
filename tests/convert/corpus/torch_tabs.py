# Tabs, and lines that end as on Windows.
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
data = TensorDataset(torch.randn(40, 4), torch.randn(40, 2))
loader = DataLoader(dataset=data, batch_size=10)
model = nn.Linear(4, 2)
opt = optim.SGD(params=model.parameters(), lr=0.1)
huber = nn.SmoothL1Loss()
for epoch in range(2):
	for x, y in loader:
		opt.zero_grad()
		loss = huber(model(x), y)
		loss.backward()
		opt.step()
	if epoch % 1 == 0: print(epoch, loss.item())
