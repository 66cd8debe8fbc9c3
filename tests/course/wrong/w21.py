"""Wrong solutions of lesson 21, each with what the check must say."""

from __future__ import annotations

from typing import Any

_WHAT = ("announced", "arrived", "begun", "done")


def _events(snapshots: Any, name: Any, which: int = -1, answers: Any = None) -> list[Any]:
    events = []
    for rank, snapshot in enumerate(snapshots):
        one = [one for one in snapshot["collectives"] if name in one["names"]][which]
        events.append((one["submitted"][0], "submitted", rank))
        events += [(one[what], what, rank) for what in _WHAT]
        heard = [at for tensor, _, at in snapshot["answers"] if tensor == name]
        if rank == 0:
            events.append(((answers or (lambda known, one: max(known)))(heard, one), "complete", rank))
    return events


def _until_arrived(heard: Any, one: Any) -> Any:
    return max(at for at in heard if at <= one["arrived"])


def forgets_to_sort(snapshots: Any, name: Any) -> Any:
    return [(what, rank) for _, what, rank in _events(snapshots, name, answers=_until_arrived)]


def takes_the_next_step_s_answer(snapshots: Any, name: Any) -> Any:
    return [(what, rank) for _, what, rank in sorted(_events(snapshots, name))]


def takes_the_oldest(snapshots: Any, name: Any) -> Any:
    return [(what, rank) for _, what, rank in sorted(_events(snapshots, name, 0, _until_arrived))]


def the_first_answer(snapshots: Any, name: Any) -> Any:
    return [(what, rank) for _, what, rank in sorted(_events(snapshots, name, answers=lambda heard, one: heard[0]))]


def latest_first(snapshots: Any, name: Any) -> Any:
    return [(what, rank) for _, what, rank in sorted(_events(snapshots, name, answers=_until_arrived), reverse=True)]


def asks_every_rank_for_answers(snapshots: Any, name: Any) -> Any:
    found = []
    for rank, snapshot in enumerate(snapshots):
        one = [one for one in snapshot["collectives"] if name in one["names"]][-1]
        found.append((max(at for tensor, _, at in snapshot["answers"] if tensor == name), "complete", rank))
        found += [(one[what], what, rank) for what in _WHAT]
    return [(what, rank) for _, what, rank in sorted(found)]


def only_tensors_that_travel_alone(snapshots: Any, name: Any) -> Any:
    alone = [
        {**one, "collectives": [each for each in one["collectives"] if each["names"] == [name]]} for one in snapshots
    ]
    return [(what, rank) for _, what, rank in sorted(_events(alone, name, answers=_until_arrived))]


def without_complete(snapshots: Any, name: Any) -> Any:
    events = sorted(_events(snapshots, name, answers=_until_arrived))
    return [(what, rank) for _, what, rank in events if what != "complete"]


def _late(snapshots: Any, of: Any = lambda one: one["announced"], scale: float = 1000) -> Any:
    times = [{one["index"]: of(one) for one in each["collectives"]} for each in snapshots]
    found = []
    for index in sorted(set.intersection(*map(set, times))):
        row = [mine[index] for mine in times]
        found.append((index, row.index(max(row)), [(max(row) - at) / scale for at in row]))
    return found


def in_nanoseconds(snapshots: Any) -> Any:
    return _late(snapshots, scale=1)


def by_submitted(snapshots: Any) -> Any:
    return _late(snapshots, lambda one: one["submitted"][0])


def by_done(snapshots: Any) -> Any:
    return _late(snapshots, lambda one: one["done"])


def by_place_in_the_list(snapshots: Any) -> Any:
    found = []
    for row in zip(*(each["collectives"] for each in snapshots), strict=False):
        times = [one["announced"] for one in row]
        found.append((row[0]["index"], times.index(max(times)), [(max(times) - at) / 1000 for at in times]))
    return found


def the_first_instead_of_the_last(snapshots: Any) -> Any:
    return [(index, waits.index(max(waits)), waits) for index, _, waits in _late(snapshots)]


def all_that_rank_0_remembers(snapshots: Any) -> Any:
    times = [{one["index"]: one["announced"] for one in each["collectives"]} for each in snapshots]
    found = []
    for index in times[0]:
        row = [mine[index] for mine in times]
        found.append((index, row.index(max(row)), [(max(row) - at) / 1000 for at in row]))
    return found


def prints_it(snapshots: Any) -> Any:
    _late(snapshots)


WRONG: dict[str, list[tuple[Any, str]]] = {
    "21.order": [
        (forgets_to_sort, "✗ In order, in timelines that are made up: 2 ranks, 1 step"),
        (forgets_to_sort, "the events stand rank by rank, and not by their time"),
        (takes_the_next_step_s_answer, "the answer belongs to the next step"),
        (takes_the_oldest, "that is the oldest collective with this tensor"),
        (the_first_answer, "the answer belongs to an earlier step"),
        (latest_first, "the latest stands first"),
        (asks_every_rank_for_answers, "nothing was found of this tensor: answers stand with rank 0 alone"),
        (only_tensors_that_travel_alone, "nothing was found of this tensor"),
        (without_complete, "“complete” is missing"),
    ],
    "21.late": [
        (in_nanoseconds, "that is in ns, and µs are asked for"),
        (by_submitted, "that is by “submitted”"),
        (by_done, "that is by “done”"),
        (by_place_in_the_list, "collectives were compared by their place in the list"),
        (the_first_instead_of_the_last, "that is the rank that announced first"),
        (all_that_rank_0_remembers, "not every rank remembers this collective; KeyError"),
        (prints_it, "yours is None. Is there a return?"),
    ],
}
