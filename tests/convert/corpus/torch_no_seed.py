# Neither the data nor the weights have a seed.
import random
import torch
from torch.utils.data import DataLoader, TensorDataset

N = 60
xs = torch.randn(N, 4)
ys = torch.tensor([[random.random()] for _ in range(N)])
loader = DataLoader(TensorDataset(xs, ys), batch_size=10, shuffle=True)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loss_fn = torch.nn.L1Loss()

for _ in range(2):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("final", model.weight.detach().numpy())
