"""From what the ranks recorded to what the timeline shows: one track per rank, one clock for all. Pure functions.

The life of a batch on one rank is cut into phases, without a gap::

    submit      from its first tensor's submission until the last one is announced; the program goes on meanwhile
    wait        until rank 0 has heard the last rank's announcement: this rank waits for that one
    negotiate   until this rank's engine has read the response
    queue       until the engine takes it up
    pack        until the transfer begins: memory, copies into the fusion buffer
    reduce      the transfer: the backend's allreduce, allgather, …
    unpack      copies to where the results belong

The time in which a rank has no collective in flight is shown as ``compute``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from workbench.runtime.trace.recorder import Answer, Collective, Snapshot

PHASES = ("compute", "submit", "wait", "negotiate", "queue", "pack", "reduce", "unpack")
_MEMORY = ("MEMCPY_", "INIT_", "ALLOCATE_")  # activities that are no transfer

Id = tuple[int, int]  # process set, number in it: one batch, the same on all ranks


@dataclass(frozen=True)
class PhaseSpan:
    """A phase; times in µs since the picture's beginning."""

    phase: str
    begin: float
    end: float


@dataclass(frozen=True)
class Bar:
    """A batch on one rank.

    Args:
        batch: process set, and number in it: equal for the same batch on other ranks.
        last: the rank that announced last, or never; None if there was no other.
        announced: when this rank did.
        row: bars that overlap in time have different rows.
        activity: the backend's word for the transfer, ``MPI_ALLREDUCE``.
        error: class of the error that it ended with, or "".
    """

    batch: Id
    kind: str
    names: tuple[str, ...]
    nbytes: int
    spans: tuple[PhaseSpan, ...]
    last: int | None
    announced: float
    row: int
    activity: str
    error: str

    def took(self, phase: str) -> float:
        """µs in a phase."""
        return sum(span.end - span.begin for span in self.spans if span.phase == phase)


@dataclass(frozen=True)
class Track:
    """One rank: its batches, oldest first, and the times when it had nothing in flight."""

    rank: int
    bars: tuple[Bar, ...]
    compute: tuple[PhaseSpan, ...]


@dataclass(frozen=True)
class Mark:
    """Something happened to the job, ``us`` after the picture's beginning.

    Args:
        text: what, for people.
        rank: the track that it happened to; -1 for all.
        told: the words stand beside it; else the pointer tells them.
    """

    us: float
    text: str
    rank: int = -1
    told: bool = True


def tracks(snapshots: Sequence[Snapshot], last: int) -> list[Track]:
    """The last batches of all ranks, on rank 0's clock.

    Args:
        snapshots: by rank.
        last: how many batches; one counts once, however many ranks take part.

    Example:
        >>> once = {"index": 0, "process_set": 0, "kind": "barrier", "names": ["b"], "bytes": 0, "phases": [],
        ...         "submitted": (1, 1), "announced": 1, "arrived": 9001, "begun": 9001, "done": 9001, "error": ""}
        >>> late = {**once, "submitted": (7001, 7001), "announced": 7001}
        >>> early, late = ({"host": "a", "wall_ns": 0, "collectives": [one], "answers": []} for one in (once, late))
        >>> early["answers"].append(("b", 1, 8001))
        >>> shown = [track.bars[0].spans for track in tracks([early, late], 20)]
        >>> [[(span.phase, span.begin, span.end) for span in spans] for spans in shown]
        [[('wait', 0.0, 8.0), ('negotiate', 8.0, 9.0)], [('negotiate', 7.0, 9.0)]]
    """
    known, shown = _known(snapshots, last)
    who = {key: _last_to_come(key, known, snapshots[0]["answers"]) for key in shown}
    zero = _zero(known, shown)
    return [_track(rank, mine, shown, who, zero) for rank, mine in enumerate(known)]


def begins_ns(snapshots: Sequence[Snapshot], last: int) -> int:
    """When the picture begins, in nanoseconds since 1970."""
    return _zero(*_known(snapshots, last)) + snapshots[0]["wall_ns"]


def _known(snapshots: Sequence[Snapshot], last: int) -> tuple[list[dict[Id, Collective]], list[Id]]:
    """By rank its batches, on rank 0's clock; and the last batches of all."""
    shifts = clock_shifts(snapshots)
    known = [
        {_id(one): _shifted(one, shift) for one in snap["collectives"]}
        for snap, shift in zip(snapshots, shifts, strict=True)
    ]
    ends = {key: max(mine[key]["done"] for mine in known if key in mine) for mine in known for key in mine}
    return known, sorted(ends, key=lambda key: (ends[key], key))[max(0, len(ends) - last) :]


def _zero(known: Sequence[dict[Id, Collective]], shown: Sequence[Id]) -> int:
    return min((_begin(mine[key]) for key in shown for mine in known if key in mine), default=0)


def clock_shifts(snapshots: Sequence[Snapshot]) -> list[int]:
    """What to take off each rank's times to get rank 0's.

    Ranks of one machine have one clock. Of others a response is taken to have arrived at the same moment as on rank 0,
    the median over all that both have; without any, the machines' wall clocks decide.
    """
    first = snapshots[0]
    arrivals = {_id(one): one["arrived"] for one in first["collectives"]}
    shifts = []
    for snap in snapshots:
        apart = [one["arrived"] - arrivals[_id(one)] for one in snap["collectives"] if _id(one) in arrivals]
        if snap["host"] == first["host"]:
            shifts.append(0)
        else:
            shifts.append(round(median(apart)) if apart else first["wall_ns"] - snap["wall_ns"])
    return shifts


def named(track: Track, names: Sequence[int]) -> Track:
    """The same track, in which ranks are called by other numbers."""
    bars = tuple(replace(bar, last=None if bar.last is None else names[bar.last]) for bar in track.bars)
    return replace(track, rank=names[track.rank], bars=bars)


def waited_s(shown: Sequence[Track]) -> dict[int, float]:
    """For each rank how long others waited for it: of each batch the longest wait, in seconds, added up."""
    longest: dict[tuple[Id, int], float] = {}
    for bar in (bar for track in shown for bar in track.bars):
        if bar.last is not None:
            longest[bar.batch, bar.last] = max(longest.get((bar.batch, bar.last), 0.0), bar.took("wait"))
    return {track.rank: sum(us for (_, rank), us in longest.items() if rank == track.rank) / 1e6 for track in shown}


def length(shown: Sequence[Track]) -> float:
    """µs from the first submission to the last end, of computing too."""
    bars = [bar for track in shown for bar in track.bars]
    computed = [span.end for track in shown for span in track.compute]
    ends = (end for bar in bars for end in (bar.announced, *(span.end for span in bar.spans)))
    return max([*ends, *computed], default=0.0)


def _track(rank: int, mine: dict[Id, Collective], shown: list[Id], who: dict[Id, Answer | None], zero: int) -> Track:
    bars: list[Bar] = []
    rows: list[int] = []  # when each row is free again
    for key in sorted((key for key in shown if key in mine), key=lambda key: (_begin(mine[key]), key)):
        one = mine[key]
        row = next((i for i, free in enumerate(rows) if free <= _begin(one)), len(rows))
        rows[row : row + 1] = [one["done"]]
        bars.append(_bar(rank, one, who[key], row, zero))
    end = max((one["done"] for key, one in mine.items() if key in shown), default=zero)
    return Track(rank, tuple(bars), tuple(_idle(mine.values(), zero, end)))


def _bar(rank: int, one: Collective, newest: Answer | None, row: int, zero: int) -> Bar:
    moved = [phase for phase in one["phases"] if not phase[0].startswith(_MEMORY)]
    ends = {
        "submit": one["announced"],
        "wait": newest[2] if newest and newest[1] != rank else 0,
        "negotiate": one["arrived"],
        "queue": one["begun"],
        "pack": moved[0][1] if moved else 0,
        "reduce": moved[-1][2] if moved else 0,
        "unpack": one["done"],
    }
    spans, begin = [], _begin(one)
    for phase, end in ends.items():
        limit = one["arrived"] if phase in ("submit", "wait") else one["done"]
        if begin < min(end, limit):
            spans.append(PhaseSpan(phase, _us(begin - zero), _us(min(end, limit) - zero)))
            begin = min(end, limit)
    return Bar(
        _id(one),
        one["kind"],
        tuple(one["names"]),
        one["bytes"],
        tuple(spans),
        newest[1] if newest else None,
        _us(max(one["announced"], _begin(one)) - zero),
        row,
        moved[0][0] if moved else "",
        one["error"],
    )


def _last_to_come(key: Id, known: Sequence[dict[Id, Collective]], answers: Sequence[Answer]) -> Answer | None:
    """Who announced last among the batch's tensors, by the newest that rank 0 knows before the response arrived."""
    found = {rank: mine[key] for rank, mine in enumerate(known) if key in mine}
    if len(found) < 2:
        return None
    one = next(iter(found.values()))  # rank 0's, if it took part: the answers are of its clock
    names, arrived = set(one["names"]), one["arrived"]
    never = [rank for rank, other in found.items() if other["error"] and not other["submitted"][0]]
    if never:
        return one["names"][0], never[0], arrived
    newest = {answer[0]: answer for answer in answers if answer[0] in names and answer[2] <= arrived}
    return max(newest.values(), key=lambda answer: answer[2], default=None)


def _idle(records: Iterable[Collective], zero: int, end: int) -> Iterable[PhaseSpan]:
    """When nothing was in flight."""
    free = zero
    for one in sorted(records, key=_begin):
        if free < min(_begin(one), end):
            yield PhaseSpan("compute", _us(free - zero), _us(min(_begin(one), end) - zero))
        free = max(free, one["done"])


def _begin(one: Collective) -> int:
    """When the batch came into being on this rank; on one that had nothing to submit, by the response."""
    return one["submitted"][0] or one["arrived"]


def _shifted(one: Collective, shift: int) -> Collective:
    first, last = one["submitted"]
    return {
        **one,
        "submitted": (first - shift, last - shift) if first else (0, 0),
        "announced": one["announced"] - shift if one["announced"] else 0,
        "arrived": one["arrived"] - shift,
        "begun": one["begun"] - shift,
        "phases": [(what, begin - shift, end - shift) for what, begin, end in one["phases"]],
        "done": one["done"] - shift,
    }


def _id(one: Collective) -> Id:
    return one["process_set"], one["index"]


def _us(ns: int) -> float:
    return ns / 1000
