# Accelerate, at the top of the module, without counting steps.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
device = accelerator.device

torch.manual_seed(1)
dataset = TensorDataset(torch.linspace(-1, 1, 40).unsqueeze(1), torch.linspace(-1, 1, 40).unsqueeze(1) ** 3)
data = DataLoader(dataset, shuffle=True, batch_size=5)
model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

model, optimizer, data = accelerator.prepare(model, optimizer, data)

model.train()
for epoch in range(3):
    for source, targets in data:
        source = source.to(device)
        targets = targets.to(device)
        optimizer.zero_grad()
        output = model(source)
        loss = nn.functional.mse_loss(output, targets)
        accelerator.backward(loss)
        optimizer.step()
    if accelerator.is_local_main_process:
        print(epoch, loss.item())
