# Weights are averaged over the last epochs (SWA), and the average is what is tested.
import torch
from torch.optim.swa_utils import SWALR, AveragedModel

torch.manual_seed(3)
x = torch.randn(160, 4)
y = x @ torch.tensor([[1.0], [0.5], [-1.0], [2.0]]) + 0.1
data = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
averaged = AveragedModel(model)
schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)

for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    if epoch >= 2:
        averaged.update_parameters(model)
        schedule.step()

with torch.no_grad():
    print("loss of the average", torch.nn.functional.mse_loss(averaged(x), y).item())
