"""A long row of lines is shown by its beginning and its end; what is between is folded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workbench.cluster.output.rows import Row
from workbench.cluster.output.screen import Item, Line

SCREEN_LINES = 40
_FEWEST = 2  # at the beginning of a row, and at its end


class Folded(NamedTuple):
    """The parts of a row; ``hidden`` and ``last`` are empty where the row is short."""

    first: Sequence[Item]
    hidden: Sequence[Item]
    last: Sequence[Item]


def folded(rows: Sequence[Row], most: int = SCREEN_LINES) -> list[tuple[Row, Folded]]:
    """Each row with its parts, such that all together take ``most`` lines where that can be.

    Example:
        >>> row = Row((0,), tuple(Line(str(i)) for i in range(1000)))
        >>> ((_, parts),) = folded([row], most=10)
        >>> [each.text for each in parts.first], len(parts.hidden), [each.text for each in parts.last]
        (['0', '1', '2', '3'], 991, ['995', '996', '997', '998', '999'])
    """
    # Rows that are short leave their lines to those that are long.
    each, left, long = most, most, len(rows)
    for n, length in enumerate(sorted(len(row.items) for row in rows)):
        each = left // (len(rows) - n)
        if length > each:
            long = len(rows) - n
            break
        left -= length
    each = max(2 * _FEWEST + 1, left // max(1, long))
    return [(row, _parts(row.items, each)) for row in rows]


def _parts(items: Sequence[Item], most: int) -> Folded:
    if len(items) <= most or any(not isinstance(item, Line) for item in items):
        return Folded(items, (), ())
    first = (most - 1) // 2
    last = len(items) - (most - 1 - first)
    return Folded(items[:first], items[first:last], items[last:])
