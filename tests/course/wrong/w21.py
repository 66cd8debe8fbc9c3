"""Wrong solutions of lesson 21, each with what the check must say."""

from __future__ import annotations

from typing import Any

from wrong_answers import Answers

wrong = Answers()

_WHAT = ("announced", "arrived", "begun", "done")


def _events(snapshots, name, which = -1, answers = None):
    events = []
    for rank, snapshot in enumerate(snapshots):
        one = [one for one in snapshot["collectives"] if name in one["names"]][which]
        events.append((one["submitted"][0], "submitted", rank))
        events += [(one[what], what, rank) for what in _WHAT]
        heard = [at for tensor, _, at in snapshot["answers"] if tensor == name]
        if rank == 0: events.append(((answers or (lambda known, one: max(known)))(heard, one), "complete", rank))
    return events
def _until_arrived(heard, one): return max(at for at in heard if at <= one["arrived"])
@wrong("21.order", "✗ In order, in timelines that are made up: the events stand rank by rank, and not by their time")
@wrong("21.order", "the events stand rank by rank, and not by their time")
def forgets_to_sort(snapshots, name):
    return [(what, rank) for _, what, rank in _events(snapshots, name, answers=_until_arrived)]
@wrong("21.order", "the answer belongs to the next step")
def takes_the_next_step_s_answer(snapshots, name):
    return [(what, rank) for _, what, rank in sorted(_events(snapshots, name))]
@wrong("21.order", "nothing was found of this tensor: answers stand with rank 0 alone")
def asks_every_rank_for_answers(snapshots, name):
    found = []
    for rank, snapshot in enumerate(snapshots):
        one = [one for one in snapshot["collectives"] if name in one["names"]][-1]
        found.append((max(at for tensor, _, at in snapshot["answers"] if tensor == name), "complete", rank))
        found += [(one[what], what, rank) for what in _WHAT]
    return [(what, rank) for _, what, rank in sorted(found)]
@wrong("21.order", "nothing was found of this tensor")
def only_tensors_that_travel_alone(snapshots, name):
    alone = [
        {**one, "collectives": [each for each in one["collectives"] if each["names"] == [name]]} for one in snapshots
    ]
    return [(what, rank) for _, what, rank in sorted(_events(alone, name, answers=_until_arrived))]
def _late(snapshots, of = lambda one: one["announced"], scale = 1000):
    times = [{one["index"]: of(one) for one in each["collectives"]} for each in snapshots]
    found = []
    for index in sorted(set.intersection(*map(set, times))):
        row = [mine[index] for mine in times]
        found.append((index, row.index(max(row)), [(max(row) - at) / scale for at in row]))
    return found
@wrong("21.late", "times are in ns, and µs are asked for")
def in_nanoseconds(snapshots): return _late(snapshots, scale=1)
@wrong("21.late", "compared by “submitted”: a rank was ready when it “announced”")
def by_submitted(snapshots): return _late(snapshots, lambda one: one["submitted"][0])
@wrong("21.late", "compared by “done”: a rank was ready when it “announced”")
def by_done(snapshots): return _late(snapshots, lambda one: one["done"])
@wrong("21.late", "collectives were compared by their place in the list")
def by_place_in_the_list(snapshots):
    found = []
    for row in zip(*(each["collectives"] for each in snapshots), strict=False):
        times = [one["announced"] for one in row]
        found.append((row[0]["index"], times.index(max(times)), [(max(times) - at) / 1000 for at in times]))
    return found
@wrong("21.late", "that is the rank that announced first")
def the_first_instead_of_the_last(snapshots):
    return [(index, waits.index(max(waits)), waits) for index, _, waits in _late(snapshots)]
@wrong("21.late", "not every rank remembers this collective; KeyError")
def all_that_rank_0_remembers(snapshots):
    times = [{one["index"]: one["announced"] for one in each["collectives"]} for each in snapshots]
    found = []
    for index in times[0]:
        row = [mine[index] for mine in times]
        found.append((index, row.index(max(row)), [(max(row) - at) / 1000 for at in row]))
    return found
@wrong("21.late", "your result is None, expected ")
def prints_it(snapshots): _late(snapshots)
@wrong("21.ready", "each name once only: it is ready in every step")
def never_forgets(size, announcements):
    ranks: dict[str, set[int]] = {}
    names = []
    for rank, name in announcements:
        ranks.setdefault(name, set()).add(rank)
        if len(ranks[name]) == size and name not in names: names.append(name)
    return names
@wrong("21.ready", "that is the order in which the tensors were first announced")
def in_the_order_of_the_first(size, announcements):
    ranks: dict[str, set[int]] = {}
    for rank, name in announcements: ranks.setdefault(name, set()).add(rank)
    return [name for name in ranks if len(ranks[name]) == size]
@wrong("21.ready", "not all have announced them")
def all_that_were_announced(size, announcements): return list(dict.fromkeys(name for _, name in announcements))
@wrong("21.ready", "your result is None, expected ")
def keeps_the_list(size, announcements): in_the_order_of_the_first(size, announcements)
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
@wrong("21.culprits", "these are the ranks that have announced it, and wait")
def who_waits(size, announcements, now, deadline_s):
    found = _waits(size, announcements, now, deadline_s)
    late = {name: said for name, (times, said, missing) in found.items() if missing and now - times[0] >= deadline_s}
    return {name: sorted(said) for name, said in late.items()}
@wrong("21.culprits", "some of these have not waited for so long yet")
def whoever_is_missing(size, announcements, now, deadline_s):
    return {name: left for name, (_, _, left) in _waits(size, announcements, now, deadline_s).items() if left}
@wrong("21.culprits", "your result is None. Is there a return?")
def keeps_the_dict(size, announcements, now, deadline_s): whoever_is_missing(size, announcements, now, deadline_s)
@wrong("21.order", "the second of the pair “submitted” was taken: the first counts")
def second_of_the_pair(snapshots, name):
    events = []
    for rank, snapshot in enumerate(snapshots):
        newest = [one for one in snapshot["collectives"] if name in one["names"]][-1]
        events.append((newest["submitted"][1], "submitted", rank))
        events += [(newest[what], what, rank) for what in ("announced", "arrived", "begun", "done")]
        if rank == 0:
            heard = [at for tensor, _, at in snapshot["answers"] if tensor == name and at <= newest["arrived"]]
            events.append((max(heard), "complete", 0))
    return [(what, rank) for _, what, rank in sorted(events)]
