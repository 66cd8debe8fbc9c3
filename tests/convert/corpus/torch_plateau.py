"""ReduceLROnPlateau on the training loss, label smoothing, weight decay; an early stop on the validation loss."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader, criterion):
    model.eval()
    with torch.no_grad():
        return sum(criterion(model(x), y).item() for x, y in loader) / len(loader)


def main(epochs=6):
    torch.manual_seed(11)
    x = torch.randn(96, 6)
    y = (x[:, 0] * x[:, 1] > 0).long()
    train_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=32)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 2))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5, factor=0.5)
    best, bad = float("inf"), 0
    for epoch in range(epochs):
        model.train()
        running = 0.0
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            running += loss.item()
        scheduler.step(running / len(train_loader))
        val_loss = evaluate(model, val_loader, criterion)
        print(f"{epoch:3d} train {running / len(train_loader):.3f} val {val_loss:.3f}")
        if val_loss < best:
            best, bad = val_loss, 0
        else:
            bad += 1
            if bad > 2:
                break


main()
