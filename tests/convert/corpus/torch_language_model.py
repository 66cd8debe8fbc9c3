#!/usr/bin/env python
"""A language model with gradient accumulation, warm-up of the rate, and a best checkpoint."""

import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

ACCUMULATE = 2
EPOCHS = 2


class Windows(Dataset):
    def __init__(self, n=64, length=5):
        self.data = torch.tensor([(i * i) % 13 for i in range(n + length)])
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.data[i : i + self.length], self.data[i + 1 : i + self.length + 1]


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 13)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])


def main():
    torch.manual_seed(42)
    train_set, val_set = Windows(64), Windows(16)
    train_dl = DataLoader(train_set, batch_size=8, shuffle=True, drop_last=True)
    val_dl = DataLoader(val_set, batch_size=8)
    model = LM()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    total_steps = len(train_dl) * EPOCHS // ACCUMULATE
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 3) * (1 - s / (2 * total_steps))
    )
    best = math.inf
    for epoch in range(EPOCHS):
        model.train()
        for i, (x, y) in enumerate(train_dl):
            logits = model(x)
            loss = criterion(logits.transpose(1, 2), y) / ACCUMULATE
            loss.backward()
            if (i + 1) % ACCUMULATE == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            val = sum(criterion(model(x).transpose(1, 2), y).item() for x, y in val_dl) / len(val_dl)
        print(f"{epoch}: perplexity {math.exp(val):.2f}")
        if val < best:
            best = val
            torch.save({"model": model.state_dict(), "epoch": epoch}, "best.pt")


if __name__ == "__main__":
    main()
