"""Trains a tied model on all samples of a step, whoever has them, from a checkpoint to the next.

Usage: STAGE FIRST LAST FILE. A rank takes every n-th of twelve samples, so each number of ranks computes the same.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import workbench.torch as hvd

STAGE, FIRST, LAST, FILE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])


class Tied(nn.Module):
    """Sizes that few numbers divide; one parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.hidden = nn.Embedding(11, 5), nn.Linear(5, 5)
        self.unused, self.out = nn.Linear(2, 1), nn.Linear(5, 11, bias=False)
        self.out.weight = self.embedding.weight
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next one, of eleven."""
        return self.out(torch.tanh(self.hidden(self.embedding(x))))


hvd.init()
model = Tied()
if STAGE == "parameters":
    hvd.shard_parameters(model)
adam = torch.optim.Adam(
    [{"params": [*model.hidden.parameters()], "lr": 0.03}, {"params": [model.out.weight, *model.unused.parameters()]}],
    lr=0.01,
)
optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), sharded=STAGE)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=20)
if FIRST:
    stored = torch.load(FILE)
    hvd.load_full_state_dict(model, stored["model"])
    optimizer.load_state_dict(stored["optimizer"])
    scheduler.load_state_dict(stored["scheduler"])
for step in range(FIRST, LAST):
    chain = torch.randint(0, 11, (12, 2), generator=torch.Generator().manual_seed(step))[hvd.rank() :: hvd.size()]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(chain[:, 0]), chain[:, 1]).backward()
    optimizer.step()
    scheduler.step()
found = {"model": hvd.full_state_dict(model), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
if hvd.rank() == 0:
    torch.save(found, FILE)
hvd.shutdown()
