# Regression, one file, no functions at all.
import numpy as np
import torch
from torch.utils.data import TensorDataset, DataLoader

rng = np.random.default_rng(0)
x = rng.normal(size=(120, 3)).astype("float32")
y = x @ np.array([[1.0], [-2.0], [0.5]], dtype="float32") + 0.3

ds = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
loader = DataLoader(ds, 20, True)

net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 0.01)
mse = torch.nn.MSELoss()

for epoch in range(3):
    total = 0.0
    for xb, yb in loader:
        opt.zero_grad()
        l = mse(net(xb), yb)
        l.backward()
        opt.step()
        total += l.item() * len(xb)
    print("epoch", epoch, "loss", total / len(loader.dataset))
