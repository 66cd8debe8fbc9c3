"""Lesson 21, follow one gradient: what happened when, and which rank was late, from the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.course.followed.records import from_ranks, made_up
from workbench.course.judging.judge import unlike
from workbench.course.judging.task import PlainTask, stated
from workbench.runtime.trace.recorder import Snapshot

Function = Callable[..., Any]
Snapshots = Sequence[Snapshot]
_TENSORS = ("allreduce.conv.weight", "allreduce.head.bias", "allreduce.head.weight")


def order(snapshots: Any, name: Any) -> Any:
    """Return what happened to a tensor, in the order of time: a list of (what, rank).

    snapshots: by rank, its records: a dict with "collectives" and "answers". All times are of one clock.
    collectives: dicts, the oldest first. Look at the newest one that has the tensor among its "names". Its "submitted"
    is a pair, of which the first counts; "announced", "arrived", "begun", "done" are times. These five, of each rank.
    answers: (tensor, rank that was last, when rank 0 heard it); only rank 0 has any. The sixth is ("complete", 0): the
    newest answer of that tensor that is not later than rank 0's "arrived".
    """
    ### BEGIN SOLUTION
    events = []
    for rank, snapshot in enumerate(snapshots):
        newest = [one for one in snapshot["collectives"] if name in one["names"]][-1]
        events.append((newest["submitted"][0], "submitted", rank))
        events += [(newest[what], what, rank) for what in ("announced", "arrived", "begun", "done")]
        heard = [at for tensor, _, at in snapshot["answers"] if tensor == name and at <= newest["arrived"]]
        if rank == 0:
            events.append((max(heard), "complete", rank))
    return [(what, rank) for _, what, rank in sorted(events)]
    ### END SOLUTION


def _in_order(snapshots: Snapshots, name: str) -> list[tuple[str, int]]:
    found: list[tuple[int, str, int]] = []
    for rank, snapshot in enumerate(snapshots):
        one = [each for each in snapshot["collectives"] if name in each["names"]][-1]
        found.append((one["submitted"][0], "submitted", rank))
        found += [(one[what], what, rank) for what in ("announced", "arrived", "begun", "done")]
        if rank == 0:
            answers = [at for tensor, _, at in snapshot["answers"] if tensor == name and at <= one["arrived"]]
            found.append((max(answers), "complete", 0))
    return [(what, rank) for _, what, rank in sorted(found)]


def _ordered(function: Function, snapshots: Snapshots, about: str) -> str:
    for name in _TENSORS:
        if not any(name in one["names"] for one in snapshots[0]["collectives"]):
            continue
        yours, wanted = function(snapshots, name), _in_order(snapshots, name)
        if wrong := unlike(yours, wanted):
            return f"{about}, {name}{wrong}"
    return ""


def _order_made_up(function: Function) -> str:
    """In order, in timelines that are made up."""
    sizes = ((2, 1), (2, 3), (3, 2), (4, 3))
    return next((text for n, steps in sizes if (text := _ordered(function, made_up(n, steps), _about(n, steps)))), "")


def _about(n: int, steps: int) -> str:
    return f"{n} ranks, {steps} step{'s' if steps > 1 else ''}"


def late(snapshots: Any) -> Any:
    """Return for each collective (index, rank that announced last, [µs that each rank waited for that one]), by index.

    snapshots: as in the exercise before. A collective has the same "index" on all ranks; one rank may remember more of
    them than another, and only those count that all have. A rank waits from its "announced" until the last rank's; the
    last one itself waits 0. Times are in ns.
    """
    ### BEGIN SOLUTION
    announced = [{one["index"]: one["announced"] for one in each["collectives"]} for each in snapshots]
    found = []
    for index in sorted(set.intersection(*map(set, announced))):
        times = [mine[index] for mine in announced]
        last = times.index(max(times))
        found.append((index, last, [(times[last] - at) / 1000 for at in times]))
    return found
    ### END SOLUTION


def _waits(snapshots: Snapshots) -> list[Any]:
    by_rank = [{one["index"]: one["announced"] for one in each["collectives"]} for each in snapshots]
    found = []
    for index in sorted(set.intersection(*map(set, by_rank))):
        times = [mine[index] for mine in by_rank]
        found.append((index, times.index(max(times)), [(max(times) - at) / 1000 for at in times]))
    return found


def _told_late(function: Function, snapshots: Snapshots, about: str) -> str:
    wrong = unlike(function(snapshots), _waits(snapshots))
    return f"{about}{wrong}" if wrong else ""


def _late_made_up(function: Function) -> str:
    """The last rank, and the waits, in timelines that are made up."""
    sizes = ((2, 1), (2, 2), (3, 2), (4, 3))
    return next((text for n, steps in sizes if (text := _told_late(function, made_up(n, steps), _about(n, steps)))), "")


TASKS = [
    PlainTask(
        "21.order",
        "what happened to a gradient, on all ranks, in order",
        order,
        probes=lambda: [
            (made_up(n, steps), name) for n, steps in ((2, 1), (2, 3), (3, 2), (4, 3)) for name in _TENSORS
        ],
        properties=[
            _order_made_up,
            *stated(
                (
                    "In order, in the timeline of three ranks that have just run.",
                    lambda f: _ordered(f, from_ranks(), "3 ranks that ran"),
                )
            ),
        ],
        points=2,
    ),
    PlainTask(
        "21.late",
        "which rank was last, and how long the others waited",
        late,
        probes=lambda: [(made_up(n, steps),) for n, steps in ((2, 1), (2, 3), (3, 2), (4, 3))],
        properties=[
            _late_made_up,
            *stated(
                (
                    "The last rank, and the waits, of three ranks that have just run.",
                    lambda f: _told_late(f, from_ranks(), "3 ranks that ran"),
                )
            ),
        ],
        points=2,
    ),
]
