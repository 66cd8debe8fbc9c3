"""What a rank has before it trains: as seeds, from which its process and the judge make the same arrays."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.course.training.trial import TRAININGS

_NOISE = 0.05  # of pixels between 0 and 1: the digits are read all the same, and a gradient is another one
_SEEDS = 1 << 62


@dataclass(frozen=True)
class Start:
    """Of one rank.

    Args:
        training: see :data:`workbench.course.training.trial.TRAININGS`.
        rank, size: who it is among how many.
        weights: seed of its weights.
        images: seed of what is added to its training images; 0: nothing.
    """

    training: str
    rank: int
    size: int
    weights: int
    images: int = 0

    def digits(self) -> Any:
        """This rank's data. The test digits are those of everybody."""
        digits = TRAININGS[self.training].data()
        if not self.images:
            return digits
        noise = np.random.default_rng(self.images).uniform(0.0, _NOISE, digits.train_x.shape)
        return replace(digits, train_x=(digits.train_x + noise).astype(np.float32))


def usual(training: str, n: int) -> list[Start]:
    """As ``check()`` has it: rank r's weights have the seed r, and all ranks have the same images."""
    return [Start(training, rank, n, rank) for rank in range(n)]


def secret(training: str, n: int) -> list[Start]:
    """Weights and images that each rank alone knows: what another needs of them it can get by messages only."""
    return [Start(training, rank, n, secrets.randbelow(_SEEDS), 1 + secrets.randbelow(_SEEDS)) for rank in range(n)]
