"""Train a small network."""

import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)  # odd   spacing kept

    def forward(self, x):
        return self.fc(x)


def train(model, loader, optimizer, criterion, epoch):
    model.train()
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if i % 2 == 0:
            print(epoch, i, loss.item(), i * len(x), len(loader.dataset))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    torch.manual_seed(1)
    x = torch.randn(64, 8)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    loader = DataLoader(data, batch_size=16, shuffle=True)

    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        train(model, loader, optimizer, criterion, epoch)
    # keep it
    torch.save(model.state_dict(), "model.pt")
    print("done")


if __name__ == "__main__":
    main()
