"""What makes figures comparable on a machine that drifts: turns, ratios of neighbours, medians with quartiles.

A peer's time of one *round* is compared with the others' of the same round, which were measured within a second or so;
then the median of these ratios is taken. A ratio of two medians would compare minutes that may have had another load.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

Seconds = dict[str, list[float]]  # by peer, one for each round


class Case(TypedDict):
    """One thing that all peers did: an array of one size, a model.

    Args:
        title: what it was.
        seconds: the slowest rank's, by peer and round.
        bytes: of the array, or 0.
        images: in one round, by all ranks; or 0.
    """

    title: str
    seconds: Seconds
    bytes: int
    images: int


class Quartiles(NamedTuple):
    """Median, and the range that half of the values lie in."""

    median: float
    low: float
    high: float


def quartiles(values: Sequence[float]) -> Quartiles:
    """Of one value or more.

    Example:
        >>> quartiles([5.0, 1.0, 2.0, 4.0, 3.0])
        Quartiles(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Quartiles(middle, low, high)


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names in the order of round ``turn``: everybody is first as often, and in the wake of somebody else.

    Example:
        >>> rotated(["a", "b", "c"], 1)
        ['b', 'c', 'a']
    """
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def ratios(seconds: Seconds, base: str) -> dict[str, Quartiles]:
    """Every peer's time over that of ``base``, round by round; above 1 the peer is slower.

    Example:
        >>> ratios({"ours": [1.0, 2.0, 1.0], "peer": [2.0, 4.0, 2.0]}, "ours")["peer"].median
        2.0
    """
    return {
        name: quartiles([mine / its for mine, its in zip(values, seconds[base], strict=True)])
        for name, values in seconds.items()
    }


def best(case: Case, limit: str) -> str:
    """The peer with the shortest median; the limit is none."""
    times = {name: quartiles(values).median for name, values in case["seconds"].items() if name != limit}
    return min(times, key=lambda name: times[name])


def winners(case: Case, ours: str, others: Sequence[str]) -> dict[str, Quartiles]:
    """Which of ``others`` are faster than ``ours`` by the median of the ratios, the fastest first."""
    faster = {name: ratio for name, ratio in ratios(case["seconds"], ours).items() if name in others}
    return {name: ratio for name, ratio in sorted(faster.items(), key=lambda each: each[1]) if ratio.median < 1}


__all__ = ["Case", "Quartiles", "Seconds", "best", "quartiles", "ratios", "rotated", "winners"]
