"""One call of an exercise on n ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One call on n ranks.

    Args:
        n: ranks.
        label: what is special about it: ``length 1``.
        inputs: by rank, the arguments after ``comm``.
    """

    n: int
    label: str
    inputs: Sequence[tuple[Any, ...]]
