"""A Trainer class with the loader, the model and the optimizer as attributes."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    batch_size: int = 8
    max_epochs: int = 2
    learning_rate: float = 3e-3
    grad_norm_clip: float = 1.0


class CharDataset(Dataset):
    def __init__(self, length=40, block=6):
        self.block = block
        self.text = [(7 * i * i + 3 * i) % 11 for i in range(length + block + 1)]
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        chunk = self.text[idx : idx + self.block + 1]
        return torch.tensor(chunk[:-1]), torch.tensor(chunk[1:])


class TinyModel(torch.nn.Module):
    def __init__(self, vocab=11, width=12):
        super().__init__()
        self.emb = torch.nn.Embedding(vocab, width)
        self.mix = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, vocab)

    def forward(self, idx, targets=None):
        x, _ = self.mix(self.emb(idx))
        logits = self.head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


class Trainer:
    def __init__(self, model, train_dataset, config):
        self.model = model
        self.config = config
        self.loader = DataLoader(train_dataset, shuffle=True, batch_size=config.batch_size, num_workers=0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate)

    def run_epoch(self, epoch):
        losses = []
        for x, y in self.loader:
            logits, loss = self.model(x, y)
            losses.append(loss.item())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            self.optimizer.step()
        print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")

    def train(self):
        for epoch in range(self.config.max_epochs):
            self.run_epoch(epoch)


if __name__ == "__main__":
    torch.manual_seed(3407)
    config = Config()
    trainer = Trainer(TinyModel(), CharDataset(), config)
    trainer.train()
