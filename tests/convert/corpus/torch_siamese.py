"""Pairs of inputs, a contrastive loss of one's own, ``for batch in loader``."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n=50):
        g = torch.Generator().manual_seed(9)
        self.left, self.right = torch.randn(n, 6, generator=g), torch.randn(n, 6, generator=g)
        self.same = (self.left[:, 0] * self.right[:, 0] > 0).float()

    def __len__(self):
        return len(self.same)

    def __getitem__(self, i):
        return self.left[i], self.right[i], self.same[i]


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, a, b, label):
        distance = F.pairwise_distance(a, b)
        loss = torch.mean(label * distance.pow(2) + (1 - label) * torch.clamp(self.margin - distance, min=0.0).pow(2))
        return loss


if __name__ == "__main__":
    torch.manual_seed(2)
    loader = DataLoader(Pairs(), batch_size=10, shuffle=True)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    criterion = ContrastiveLoss()
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
    for epoch in range(2):
        for batch in loader:
            left, right, same = batch
            optimizer.zero_grad()
            loss = criterion(net(left), net(right), same)
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "loss", loss.item())
