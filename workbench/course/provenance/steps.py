"""A run as steps: which messages each step has, what every rank holds after it, and what is wrong first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workbench.course.provenance.coding import Coded, Content
from workbench.course.provenance.trace import Change
from workbench.course.simulator import SimulatedMessage

_NOTHING_S = 1e-12


@dataclass(frozen=True)
class Step:
    """All messages that could travel at the same time, and what is there after them.

    Args:
        number: 0 is the beginning.
        messages: of this step.
        changes: made with what they brought.
        held: (rank, chunk) → what is in it.
    """

    number: int
    messages: Sequence[SimulatedMessage]
    changes: Sequence[Change]
    held: Mapping[tuple[int, int], Content] = field(default_factory=dict)


@dataclass(frozen=True)
class Wrong:
    """The first change that cannot be right.

    Args:
        step: its number.
        change: which.
        why: in some words.
    """

    step: int
    change: Change
    why: str


def steps_of(changes: Sequence[Change], messages: Sequence[SimulatedMessage]) -> list[Step]:
    """The steps of a run.

    A message belongs to the step after the last one whose messages its sender or its receiver had got or sent before
    it began. A change belongs to the last step whose messages its rank had got or sent by then.
    """
    numbers: list[tuple[SimulatedMessage, int]] = []
    for one in sorted(messages, key=lambda one: (one.begin, one.end)):
        numbers.append((one, 1 + _last({one.source, one.dest}, one.begin, numbers)))
    of_change = [(change, _last({change.rank}, change.at_s, numbers)) for change in changes]
    last = max([number for _, number in (*numbers, *of_change)], default=0)
    held: dict[tuple[int, int], Content] = {}
    found = []
    for number in range(last + 1):
        mine = [change for change, of in of_change if of == number]
        held.update({(change.rank, change.chunk): change.after for change in mine})
        found.append(Step(number, [one for one, of in numbers if of == number], mine, dict(held)))
    return found


def _last(ranks: set[int], at_s: float, numbers: Sequence[tuple[SimulatedMessage, int]]) -> int:
    done = [of for one, of in numbers if one.end <= at_s + _NOTHING_S and ranks & {one.source, one.dest}]
    return max(done, default=0)


def first_wrong(steps: Sequence[Step], coded: Coded, n: int) -> Wrong | None:
    """The first change that no right run makes; None if something is only missing at the end."""
    for step in steps:
        for change in step.changes:
            if why := _wrong(change, coded, n):
                return Wrong(step.number, change, why)
    return None


def _wrong(change: Change, coded: Coded, n: int) -> str:
    """A sum only grows: by ranks that are not in it yet, in their own chunk. What is passed on is what is wanted."""
    if change.before is None:
        return ""
    if not coded.sums:
        right = coded.right(change.rank, change.chunk, n)
        if change.after == right:
            return ""
        same = change.after.keys() == right.keys()
        return "the value was changed" if same else "another rank's value than the one that is wanted"
    strange = sorted({chunk for _, chunk in change.after if chunk != change.chunk})
    twice = sorted(rank for (rank, _), times in change.after.items() if times > 1)
    lost = sorted(rank for rank, chunk in change.before if (rank, chunk) not in change.after)
    if strange:
        return f"chunk {strange[0]} comes into the place of chunk {change.chunk}"
    if twice:
        return f"{ranks(twice)} {'is' if len(twice) == 1 else 'are'} added a second time"
    return f"what was there of {ranks(lost)} is lost" if lost else ""


def ranks(numbers: Sequence[int]) -> str:
    """Some ranks.

    Example:
        >>> ranks([0]), ranks([0, 2, 3])
        ('rank 0', 'ranks 0, 2 and 3')
    """
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
