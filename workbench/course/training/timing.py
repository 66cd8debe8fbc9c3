"""From measured seconds to images/s or samples/s, speed-up and efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class SpeedupRow:
    """One line of the table.

    Args:
        engines: how many trained together.
        per_s: images or samples per second, the median over the rounds.
        speedup: times as fast as the first line; the median of the rounds' own ratios.
        efficiency: speed-up per engine.
    """

    engines: int
    per_s: float
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class SpeedupTable:
    """Lines by number of engines; prints as a table.

    Args:
        rows: the lines.
        unit: what is counted per second.
    """

    rows: tuple[SpeedupRow, ...]
    unit: str = "images"

    def speedup(self, engines: int) -> float:
        """The speed-up of one line."""
        return next(row.speedup for row in self.rows if row.engines == engines)

    def __str__(self) -> str:
        lines = [f"{'engines':>7}  {self.unit + '/s':>10}  {'speed-up':>8}  {'efficiency':>10}"]
        lines += [
            f"{row.engines:>7}  {row.per_s:>10,.0f}  {row.speedup:>7.2f}×  {row.efficiency:>9.0%}" for row in self.rows
        ]
        return "\n".join(lines)


def speedup_table(seconds: Mapping[int, Sequence[float]], images: int, unit: str = "images") -> SpeedupTable:
    """Compare rounds that were measured in turns.

    Args:
        seconds: number of engines → seconds of each round. Round i of all numbers was measured at about the same
            moment, so ratios are taken round by round: a machine that slows down slows both.
        images: images, or other samples, of one round.
        unit: what they are called in the table.

    Raises:
        ValueError: no rounds, or not the same number of them everywhere.

    Example:
        >>> print(speedup_table({1: [2.0, 4.0], 2: [1.0, 2.5]}, images=1000))
        engines    images/s  speed-up  efficiency
              1         375     1.00×       100%
              2         700     1.80×        90%
    """
    counts = {len(rounds) for rounds in seconds.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(
            f"Every number of engines needs the same number of rounds, at least one; got {sorted(counts)}."
        )
    base = seconds[min(seconds)]
    rows = []
    for engines in sorted(seconds):
        mine = seconds[engines]
        speedup = median(one / many for one, many in zip(base, mine, strict=True))
        rate = median(images / took for took in mine)
        rows.append(SpeedupRow(engines, rate, speedup, speedup / engines * min(seconds)))
    return SpeedupTable(tuple(rows), unit)
