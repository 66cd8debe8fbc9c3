"""OneCycleLR, stepped after each batch; an exponential moving average of the weights."""
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 2


@torch.no_grad()
def update_average(average, model, decay=0.9):
    for a, p in zip(average.parameters(), model.parameters()):
        a.mul_(decay).add_(p, alpha=1 - decay)


def main():
    torch.manual_seed(12)
    x = torch.randn(64, 5)
    train_loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.05, steps_per_epoch=len(train_loader), epochs=EPOCHS
    )
    loss_fn = nn.HuberLoss()
    for epoch in range(EPOCHS):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            update_average(average, model)
        print(f"epoch {epoch} rate {scheduler.get_last_lr()[0]:.5f}")
    torch.save(average.state_dict(), "average.pt")


if __name__ == "__main__":
    main()
