"""GPT-2's smallest model in torch alone, for machines without a package of models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Causal attention, then two linear layers, each on what is normalized and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, words, width) to the same shape."""
        n, words, width = x.shape
        parts = self.attention(self.before_attention(x)).view(n, words, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(n, words, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    """Radford et al., 2019: 148 tensors, 124,439,808 parameters as it is, without dropout.

    Args:
        layers: blocks.
        width: of a word's vector.
        heads: of the attention.
        vocabulary: different words.
        most: words in a text.
    """

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257, most: int = 1024
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(most, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Numbers of words, (n, words), to scores of the word that comes next, (n, vocabulary, words)."""
        hidden = self.words(x) + self.places.weight[: x.shape[1]]
        return F.linear(self.norm(self.blocks(hidden)), self.words.weight).transpose(1, 2)  # the same matrix
