"""What is recorded of one run of a script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SEED = 7


class Enough(BaseException):
    """There have been as many steps as were asked for. Not an Exception, which a script might catch."""


@dataclass
class Record:
    """What one rank did.

    Args:
        losses: of each ``backward()``.
        weights: after the last step, in the order of the optimizer's parameters.
        begin: the same before the first step; none where that is not seen.
        steps: how many there were.
        seen: what was found that makes runs differ, such as "dropout".
        output: what the script printed.
        error: its traceback, if it failed.
    """

    losses: list[float] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    begin: list[Any] = field(default_factory=list)
    steps: int = 0
    seen: set[str] = field(default_factory=set)
    output: str = ""
    error: str = ""

    def stepped(self, limit: int, weights: list[Any], begin: list[Any]) -> None:
        """There has been one more step; :class:`Enough` is raised after the last that is wanted."""
        self.steps += 1
        if self.steps <= limit:
            self.weights, self.begin = weights, begin
        if self.steps >= limit:
            raise Enough
