# A small U-Net in spirit: custom loss class, tqdm where there is one, gradient scaler for mixed precision.
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

try:
    from tqdm import tqdm
except ImportError:

    def tqdm(it, **kwargs):
        return it


class Shapes(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = torch.rand(1, 8, 8, generator=g)
        return image, (image > 0.5).float()


class MixedLoss(nn.Module):
    def __init__(self, alpha=0.5):
        super().__init__()
        self.alpha = alpha
        self.bce = nn.BCEWithLogitsLoss()

    def forward(self, logits, target):
        dice = ((torch.sigmoid(logits) - target) ** 2).mean()
        return self.alpha * self.bce(logits, target) + (1 - self.alpha) * dice


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, padding=1)
        self.up = nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x):
        return self.up(F.relu(self.down(x)))


def main():
    torch.manual_seed(0)
    os.makedirs("checkpoints", exist_ok=True)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    train_ds = Shapes(32)
    loader = DataLoader(train_ds, batch_size=8, shuffle=True, pin_memory=torch.cuda.is_available())
    model = UNet().to(device)
    loss_fn = MixedLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
    for epoch in range(2):
        loop = tqdm(loader)
        for batch_idx, (data, targets) in enumerate(loop):
            data = data.to(device=device)
            targets = targets.to(device=device)
            predictions = model(data)
            loss = loss_fn(predictions, targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        checkpoint = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(checkpoint, f"checkpoints/{epoch}.pt")


if __name__ == "__main__":
    main()
