"""Which ranks have which lines: what several ranks have printed alike is shown once."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbench.cluster.output.screen import Item, Line

_NEAR = 64  # so many places ahead a rank's line is looked for
_BAR = re.compile(r"^(?P<before>.*?)\s*(?P<percent>\d+)%\|.*\|\s*(?P<at>\d+)/(?P<of>\d+)")
SCREEN_LINES = 40
_FEWEST = 2  # at the beginning of a row, and at its end


@dataclass(frozen=True)
class Row:
    """Lines and bundles that follow each other.

    Args:
        ranks: which have all of them, in order.
        items: they.
    """

    ranks: tuple[int, ...]
    items: tuple[Item, ...]


def merged(printed: Mapping[int, Sequence[Item]]) -> list[Row]:
    """The rows of all ranks. Each rank's own order is kept.

    A line that several ranks have is shown once, if their other lines allow it; between two such lines each rank's own
    lines follow each other, the lowest rank first.

    Args:
        printed: by rank.

    Example:
        >>> a, b = Line("step 1"), Line("step 2")
        >>> for row in merged({0: [a, Line("only rank 0"), b], 1: [a, b]}):
        ...     print(row.ranks, [each.text for each in row.items])
        (0, 1) ['step 1']
        (0,) ['only rank 0']
        (0, 1) ['step 2']
    """
    order: list[tuple[Item, list[int]]] = []
    for rank, items in sorted(printed.items()):
        order = _with(order, rank, items)
    return list(_rows(order, tuple(sorted(printed))))


def _with(order: list[tuple[Item, list[int]]], rank: int, items: Sequence[Item]) -> list[tuple[Item, list[int]]]:
    """``order`` with one rank more: its lines stand behind what it has in common with those before."""
    places: dict[Item, list[int]] = defaultdict(list)
    for i, (item, _) in enumerate(order):
        places[item].append(i)
    at, own, new = -1, list[Item](), list[tuple[Item, list[int]]]()
    for item in items:
        there = places.get(item, [])
        found = bisect_right(there, at)
        if found == len(there) or there[found] > at + _NEAR:
            own.append(item)
            continue
        new += order[at + 1 : there[found]]
        new += [(each, [rank]) for each in own]
        new.append((item, [*order[there[found]][1], rank]))
        at, own = there[found], []
    return [*new, *order[at + 1 :], *((each, [rank]) for each in own)]


def _rows(order: Iterable[tuple[Item, list[int]]], everybody: tuple[int, ...]) -> Iterable[Row]:
    """Neighbours with the same ranks are one row; between rows of all ranks, each set of ranks has one row."""
    between: dict[tuple[int, ...], list[Item]] = {}
    common: list[Item] = []
    for item, ranks in order:
        if (who := tuple(ranks)) == everybody:
            yield from _own(between)
            between = {}
            common.append(item)
        else:
            if common:
                yield Row(everybody, tuple(common))
                common = []
            between.setdefault(who, []).append(item)
    if common:
        yield Row(everybody, tuple(common))
    yield from _own(between)


def _own(between: Mapping[tuple[int, ...], list[Item]]) -> Iterable[Row]:
    for who in sorted(between):
        yield Row(who, tuple(between[who]))


def one_bar(printed: Mapping[int, Sequence[Item]]) -> dict[int, list[Item]]:
    """The same, but a progress bar that all ranks have is that of the slowest rank.

    Example:
        >>> bars = {0: [Line(" 40%|####      | 4/10 [00:02]")], 1: [Line(" 20%|##        | 2/10 [00:02]")]}
        >>> merged(one_bar(bars))[0].items[0].text
        ' 20%|##        | 2/10 [00:02] (the slowest: rank 1; the fastest, rank 0, is at 4)'
    """
    found = {rank: list(items) for rank, items in printed.items()}
    places = defaultdict[tuple[str, str, int], dict[int, tuple[int, int]]](dict)
    for rank, items in found.items():
        seen = Counter[tuple[str, str]]()
        for i, item in enumerate(items):
            if isinstance(item, Line) and "%|" in item.text and (bar := _BAR.match(item.text)):
                what = bar["before"], bar["of"]
                key = (*what, seen[what])
                places[key][rank] = i, int(bar["at"])
                seen[what] += 1
    for bars in places.values():
        if len(bars) == len(printed) > 1:
            shown = _slowest({rank: (found[rank][i], at) for rank, (i, at) in bars.items()})
            for rank, (i, _) in bars.items():
                found[rank][i] = shown
    return found


def _slowest(bars: Mapping[int, tuple[Item, int]]) -> Line:
    slow, fast = min(bars, key=lambda rank: bars[rank][1]), max(bars, key=lambda rank: bars[rank][1])
    line, at = bars[slow]
    assert isinstance(line, Line)
    if at == bars[fast][1]:
        return line
    return Line(f"{line.text} (the slowest: rank {slow}; the fastest, rank {fast}, is at {bars[fast][1]})", line.error)


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
