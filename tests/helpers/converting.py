"""Scripts that are converted and run: what they print on one rank as they were, and on two when converted."""

from __future__ import annotations

from pathlib import Path

from workbench.convert.check.record import Record
from workbench.convert.check.recording import record
from workbench.convert.conversion import Converted, Options, convert
from workbench.launch.function import run

DATA = """\
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(64, 4)
y = (x.sum(1) > 0).long()
data = TensorDataset(x, y)
"""
LOADER = "loader = DataLoader(data, batch_size=16, shuffle=True)\n"
MODEL = """\
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """\
for epoch in range(2):
    correct = 0
    for xb, yb in loader:
        optimizer.zero_grad()
        out = model(xb)
        loss = F.cross_entropy(out, yb)
        loss.backward()
        optimizer.step()
        correct += (out.argmax(1) == yb).sum().item()
"""
TRAINING = DATA + LOADER + MODEL + LOOP


def _records(before: list[str], after: list[str], here: str) -> tuple[list[Record], list[Record]]:
    """Each rank first runs the scripts alone, as they were: all of them, for Keras numbers layers by process."""
    return [record(text, here, [], 10_000) for text in before], [record(text, here, [], 10_000) for text in after]


Trained = tuple[Record, list[Record]]
"""What a script did on one rank, and converted on each of two."""


def both(texts: list[str]) -> list[Converted]:
    """The scripts, converted; nothing is left to decide."""
    converted = [convert("train.py", text) for text in texts]
    assert not [each.edits.undecided for each in converted if each.edits.undecided]
    return converted


def trained(scripts: list[Converted], folder: Path) -> list[Trained]:
    """Each on one rank as it was, and converted on two, from beginning to end."""
    here = str(folder / "train.py")
    texts = [each.before for each in scripts], [each.after for each in scripts]
    (alone, first), (_, second) = run(_records, (*texts, here), np=2)
    found = [(one, [*two]) for one, *two in zip(alone, first, second, strict=True)]
    for one, two in found:
        assert not "".join(each.error for each in (one, *two)), "\n".join(each.error for each in (one, *two))
    return found


def decided(text: str, options: Options | None = None) -> list[tuple[int, str]]:
    """(line, what is left to decide there)."""
    return [(each.line, each.text) for each in convert("train.py", text, options).edits.undecided]


__all__ = ["DATA", "LOADER", "LOOP", "MODEL", "TRAINING", "Trained", "both", "decided", "trained"]
