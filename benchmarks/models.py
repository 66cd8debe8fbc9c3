"""The networks of ``training.py``, each with a batch of synthetic data: a small one, a deep one, a heavy one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
import gpt
from gpt import VOCABULARY, Shape

GPT2_SMALL = Shape(layers=12, width=768, heads=12, tokens=1024, vocabulary=50257)
"""As large as GPT-2's smallest model: 123.6 million parameters in 98 tensors."""


class Gpt(gpt.GPT):
    """The course's language model, with scores as ``cross_entropy`` takes those of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Numbers of words, (n, words), to scores of the word that comes next, (n, vocabulary, words)."""
        scores: torch.Tensor = super().forward(x)
        return scores.transpose(1, 2)


def cnn() -> nn.Module:
    """Two convolutions and two linear layers: 109 thousand parameters, some 10 ms per step, so every delay counts."""
    convolutions = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))


class Block(nn.Module):
    """ResNet-18's block: two 3 × 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *[nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()],
            *[nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)],
        )
        same = inputs == width and stride == 1
        change = [nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)]
        self.shortcut = nn.Identity() if same else nn.Sequential(*change)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) to (n, width, h / stride, w / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """He et al., arXiv:1512.03385, table 1, for 10 classes: 62 tensors, 11.2 million parameters."""
    first = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(inputs, width, 1 if inputs == width else 2) for inputs, width in pairwise([64, *widths])]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    """Four linear layers, 25 million parameters: much to send, little to compute."""
    sizes = [1024, 3072, 3072, 3072, 1000]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def vgg() -> nn.Module:
    """As VGG: convolutions in front compute, and linear layers behind have the parameters, 8.4 of 8.7 million.

    Of 32 × 32 images, so that a step takes some 0.1 s on a core.
    """
    layers: list[nn.Module] = []
    for inputs, width in pairwise([3, 32, 64, 128]):
        layers += [nn.Conv2d(inputs, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


@dataclass(frozen=True)
class Task:
    """A network and its data.

    Args:
        title: as in the table.
        make: the network.
        batch: images of one rank in one step.
        shape: of one image; or (words,) of a text.
        classes: how many; or different words.
        text: samples are texts, and each word's class is the next word.
    """

    title: str
    make: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, ...]
    classes: int
    text: bool = False

    def data(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch, the same in every step."""
        source = torch.Generator().manual_seed(seed)
        if self.text:
            texts = torch.randint(0, self.classes, (self.batch, self.shape[0] + 1), generator=source)
            return texts[:, :-1], texts[:, 1:]
        x = torch.randn(self.batch, *self.shape, generator=source)
        return x, torch.randint(0, self.classes, (self.batch,), generator=source)


TASKS = {
    "cnn": Task("CNN, 0.1 M, batch 64", cnn, 64, (1, 28, 28), 10),
    "resnet18": Task("ResNet-18, 11 M, batch 16", resnet18, 16, (3, 64, 64), 10),
    "mlp": Task("MLP, 25 M, batch 32", mlp, 32, (1024,), 1000),
}


GPT = Task("GPT, 10.7 M, batch 2 × 64", lambda: Gpt(Shape(6, 384, 6, 64)), 2, (64,), VOCABULARY, text=True)
"""Not in ``training.py``: as large as what nanoGPT trains on characters."""


def vgg_like(batch: int = 32) -> Task:
    """Not in ``training.py``: it is for links."""
    return Task(f"VGG-like, 8.7 M, batch {batch}", vgg, batch, (3, 32, 32), 10)
