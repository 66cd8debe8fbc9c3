"""A focal loss without a reduction, whose mean is taken; several optimizer arguments; logging instead of print."""
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO)
logger = logging.getLogger(__name__)


def focal_loss(logits, targets, gamma=2.0):
    ce = nn.functional.cross_entropy(logits, targets, reduction="none")
    p = torch.exp(-ce)
    return ((1 - p) ** gamma * ce).mean()


def fit(model: nn.Module, loader: DataLoader, *, epochs: int, lr: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    for epoch in range(epochs):
        seen = 0
        for x, y in loader:
            loss = focal_loss(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            seen += len(y)
        logger.info("epoch %d: loss %.3f after %d samples", epoch, loss.item(), seen)


def main() -> None:
    torch.manual_seed(8)
    x = torch.randn(72, 9)
    y = x[:, :3].argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=18, shuffle=True, drop_last=True)
    fit(nn.Sequential(nn.Linear(9, 12), nn.SiLU(), nn.Linear(12, 3)), loader, epochs=2, lr=3e-3)


if __name__ == "__main__":
    main()
