"""The lifecycle of every backend: each says what is to be done at which point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.core.backend.base import Backend
from workbench.errors import CollectiveError


def nothing(*_: object) -> None:
    """Nothing is to be done."""


@dataclass(frozen=True)
class Life:
    """See :class:`workbench.core.backend.base.Lifecycle`.

    Args:
        tick, subset, give_up: as there.
        end: ``close``, told whether the end is clean.
    """

    tick: Callable[[Callable[[], None]], None]
    subset: Callable[[Sequence[int]], Backend]
    end: Callable[[bool], None]
    give_up: Callable[[CollectiveError], None] = nothing

    def close(self, clean: bool = True) -> None:
        self.end(clean)
