"""Calls of functions on ranks that stay: the driver numbers them as a notebook its cells, and ranks report them so.

See :mod:`workbench.common.cell_numbers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class NumberedCalls:
    """Numbers the calls of each rank.

    A rank hears nothing of the driver while it runs a call. So one that has ended all that the newest call knew of
    counts as one to which nothing more is sent, and one that has not come so far is late.

    Args:
        n: how many ranks.

    Example:
        >>> calls = NumberedCalls(2)
        >>> said = calls.next([0, 1])
        >>> calls.next([0])["sent"]
        [(0, 2), (1, 1)]
    """

    def __init__(self, n: int) -> None:
        self._sent, self._version = [0] * n, 0

    def next(self, ranks: Iterable[int]) -> dict[str, Any]:
        """What a call carries that is about to be sent to these."""
        self._version += 1
        for each in ranks:
            self._sent[each] += 1
        sent = list(enumerate(self._sent))
        return {
            "version": self._version,
            "call": self._version,
            "numbers": sent,
            "sent": sent,
            "idle": list(range(len(sent))),
            "running": [],
        }
