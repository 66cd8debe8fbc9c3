"""The random generators that a whole process shares: a function that changes them changes what other code draws."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from workbench.common.extras import loaded


def states() -> dict[str, Any]:
    """By library; torch's, if it is loaded."""
    found = {"numpy": tuple(map(_comparable, np.random.get_state())), "Python": random.getstate()}
    torch = loaded("torch")
    return found if torch is None else {**found, "torch": torch.get_rng_state().numpy().tobytes()}


def _comparable(part: Any) -> Any:
    return part.tobytes() if isinstance(part, np.ndarray) else part


def seed(number: int) -> None:
    """All of them."""
    np.random.seed(number % (1 << 32))
    random.seed(number)
    if (torch := loaded("torch")) is not None:
        torch.manual_seed(number)


def draw(name: str) -> None:
    """Change the one of this library; numpy's where that library is not loaded."""
    torch = loaded("torch")
    if name == "Python":
        random.random()
    elif name == "torch" and torch is not None:
        torch.rand(1)
    else:
        np.random.random()


@contextmanager
def kept() -> Iterator[None]:
    """As they were before, afterwards."""
    torch, numpys, own = loaded("torch"), np.random.get_state(), random.getstate()
    torchs = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        np.random.set_state(numpys)
        random.setstate(own)
        if torch is not None:
            torch.set_rng_state(torchs)
