"""A script for Accelerate; it knows nothing of the workbench."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(1)
x = torch.randn(64, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 16 // accelerator.num_processes)
model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 1e-2), loader)
for _ in range(3):
    for rows, wanted in loader:
        optimizer.zero_grad()
        accelerator.backward(((model(rows) - wanted) ** 2).mean())
        optimizer.step()
print("RESULT", accelerator.num_processes, sum(float(each.abs().sum()) for each in model.parameters()))
