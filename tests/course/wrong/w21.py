"""Wrong solutions of lesson 21, each with what the check must say."""

from __future__ import annotations

from typing import Any

from workbench.course.tasks.t21_follow_one_gradient import order

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


def never_forgets(size: Any, announcements: Any) -> Any:
    ranks: dict[str, set[int]] = {}
    names = []
    for rank, name in announcements:
        ranks.setdefault(name, set()).add(rank)
        if len(ranks[name]) == size and name not in names:
            names.append(name)
    return names


def in_the_order_of_the_first(size: Any, announcements: Any) -> Any:
    ranks: dict[str, set[int]] = {}
    for rank, name in announcements:
        ranks.setdefault(name, set()).add(rank)
    return [name for name in ranks if len(ranks[name]) == size]


def all_that_were_announced(size: Any, announcements: Any) -> Any:
    return list(dict.fromkeys(name for _, name in announcements))


def rank_0_alone(size: Any, announcements: Any) -> Any:
    return [name for rank, name in announcements if rank == 0]


def each_announcement(size: Any, announcements: Any) -> Any:
    return [name for _, name in announcements]


def by_the_alphabet(size: Any, announcements: Any) -> Any:
    times: dict[str, int] = {}
    for _, name in announcements:
        times[name] = times.get(name, 0) + 1
    return sorted(name for name in times for _ in range(times[name] // size))


def keeps_the_list(size: Any, announcements: Any) -> Any:
    in_the_order_of_the_first(size, announcements)


def _waits(
    size: Any, announcements: Any, now: Any, deadline_s: Any
) -> dict[str, tuple[list[int], list[int], list[int]]]:
    """Of each name: its times, who has announced it, and who has not."""
    found: dict[str, tuple[list[int], list[int], list[int]]] = {}
    for seconds, rank, name in announcements:
        times, said, missing = found.setdefault(name, ([], [], list(range(size))))
        times.append(seconds)
        said.append(rank)
        missing.remove(rank)
    return found


def who_waits(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    found = _waits(size, announcements, now, deadline_s)
    late = {name: said for name, (times, said, missing) in found.items() if missing and now - times[0] >= deadline_s}
    return {name: sorted(said) for name, said in late.items()}


def whoever_is_missing(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    return {name: left for name, (_, _, left) in _waits(size, announcements, now, deadline_s).items() if left}


def since_the_last(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    found = _waits(size, announcements, now, deadline_s)
    return {name: left for name, (times, _, left) in found.items() if left and now - times[-1] >= deadline_s}


def keeps_what_is_ready(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    found = _waits(size, announcements, now, deadline_s)
    return {name: left for name, (times, _, left) in found.items() if now - times[0] >= deadline_s}


def the_first_culprit_of_each(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    found = _waits(size, announcements, now, deadline_s)
    return {name: left[:1] for name, (times, _, left) in found.items() if left and now - times[0] >= deadline_s}


def just_before_the_deadline(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    found = _waits(size, announcements, now, deadline_s)
    return {name: left for name, (times, _, left) in found.items() if left and now - times[0] > deadline_s}


def keeps_the_dict(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    whoever_is_missing(size, announcements, now, deadline_s)


def second_of_the_pair(snapshots: Any, name: str) -> Any:
    events = []
    for rank, snapshot in enumerate(snapshots):
        newest = [one for one in snapshot["collectives"] if name in one["names"]][-1]
        events.append((newest["submitted"][1], "submitted", rank))
        events += [(newest[what], what, rank) for what in ("announced", "arrived", "begun", "done")]
        if rank == 0:
            heard = [at for tensor, _, at in snapshot["answers"] if tensor == name and at <= newest["arrived"]]
            events.append((max(heard), "complete", 0))
    return [(what, rank) for _, what, rank in sorted(events)]


def each_rank_by_itself(snapshots: Any, name: str) -> Any:
    found = order(snapshots, name)
    return sorted(found, key=lambda one: one[1])


def forgets_all_names(size: int, announcements: Any) -> Any:
    seen: dict[str, set[int]] = {}
    found = []
    for rank, name in announcements:
        seen.setdefault(name, set()).add(rank)
        if len(seen[name]) == size:
            found.append(name)
            seen = {}
    return found


WRONG: dict[str, list[tuple[Any, str]]] = {
    "21.ready": [
        (never_forgets, "and here it counts once"),
        (in_the_order_of_the_first, "that is the order in which the tensors were first announced"),
        (all_that_were_announced, "not all have announced them"),
        (rank_0_alone, "that is what rank 0 has announced"),
        (each_announcement, "one announcement does not make a tensor ready"),
        (by_the_alphabet, "that is the order of the alphabet"),
        (keeps_the_list, "your result is None. Is there a return?"),
        (forgets_all_names, "the announcements of all other tensors are forgotten, too"),
    ],
    "21.culprits": [
        (who_waits, "these are the ranks that have announced it, and wait"),
        (whoever_is_missing, "some of these have not waited for so long yet"),
        (since_the_last, "the clock starts with the first announcement"),
        (keeps_what_is_ready, "a tensor that is ready is not late"),
        (the_first_culprit_of_each, "that is one rank for each tensor, and there may be more"),
        (just_before_the_deadline, "a tensor that was first announced exactly deadline_s ago is late, too"),
        (keeps_the_dict, "your result is None. Is there a return?"),
    ],
    "21.order": [
        (
            forgets_to_sort,
            "✗ In order, in timelines that are made up: the events stand rank by rank, and not by their time",
        ),
        (forgets_to_sort, "the events stand rank by rank, and not by their time"),
        (takes_the_next_step_s_answer, "the answer belongs to the next step"),
        (takes_the_oldest, "that is the oldest collective with this tensor"),
        (the_first_answer, "the answer belongs to an earlier step"),
        (latest_first, "the latest stands first"),
        (asks_every_rank_for_answers, "nothing was found of this tensor: answers stand with rank 0 alone"),
        (only_tensors_that_travel_alone, "nothing was found of this tensor"),
        (without_complete, "“complete” is missing"),
        (second_of_the_pair, "the second of the pair “submitted” was taken: the first counts"),
        (each_rank_by_itself, "the events stand rank by rank, and not by their time"),
    ],
    "21.late": [
        (in_nanoseconds, "that is in ns, and µs are asked for"),
        (by_submitted, "that is by “submitted”"),
        (by_done, "that is by “done”"),
        (by_place_in_the_list, "collectives were compared by their place in the list"),
        (the_first_instead_of_the_last, "that is the rank that announced first"),
        (all_that_rank_0_remembers, "not every rank remembers this collective; KeyError"),
        (prints_it, "your result is None. Is there a return?"),
    ],
}
