"""Right answers of lesson 21 that are unlike the official ones."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby

import numpy as np


def order_by_a_dict(snapshots, name):  # From event to time; then sorted by the time.
    at: dict[tuple[str, int], int] = {}
    for rank, snapshot in enumerate(snapshots):
        for one in snapshot["collectives"]:
            if name in one["names"]:  # later ones replace earlier ones
                at["submitted", rank] = one["submitted"][0]
                at |= {(what, rank): one[what] for what in ("announced", "arrived", "begun", "done")}
    for tensor, _, heard in snapshots[0]["answers"]:
        if tensor == name and heard <= at["arrived", 0]: at["complete", 0] = heard
    return sorted(at, key=lambda event: at[event])
def order_from_the_end(snapshots, name):  # Looks for the newest backwards, and returns lists in a tuple.
    events = []
    for rank, snapshot in enumerate(snapshots):
        one = next(one for one in reversed(snapshot["collectives"]) if name in one["names"])
        for what, at in one.items():
            if what in ("submitted", "announced", "arrived", "begun", "done"):
                events.append((at[0] if what == "submitted" else at, [what, rank]))
        for tensor, _, heard in reversed(snapshot["answers"]):
            if tensor == name and heard <= one["arrived"]:
                events.append((heard, ["complete", 0]))
                break
    return tuple(event for _, event in sorted(events, key=lambda pair: pair[0]))
def late_rank_by_rank(snapshots):  # Collects by index, and keeps those that have as many times as there are ranks.
    times: dict[int, list[int]] = {}
    for snapshot in snapshots:
        for one in snapshot["collectives"]: times.setdefault(one["index"], []).append(one["announced"])
    complete = {index: each for index, each in times.items() if len(each) == len(snapshots)}
    return [(i, each.index(max(each)), [(max(each) - t) / 1e3 for t in each]) for i, each in sorted(complete.items())]
def late_by_sorting(snapshots):  # Sorts (time, rank) of each collective; the last of them is the last.
    found = []
    for first in snapshots[0]["collectives"]:
        pairs = [
            (one["announced"], rank)
            for rank, snapshot in enumerate(snapshots)
            for one in snapshot["collectives"]
            if one["index"] == first["index"]
        ]
        if len(pairs) == len(snapshots):
            latest, rank = sorted(pairs)[-1]
            found.append([first["index"], rank, [(latest - at) * 0.001 for at, _ in pairs]])
    return found
def ready_by_counting(size, announcements):
    """A name is ready when it has been announced a multiple of size times: nobody announces it twice in a step."""
    times: dict[str, int] = {}
    names = []
    for _, name in announcements:
        times[name] = times.get(name, 0) + 1
        if times[name] % size == 0: names.append(name)
    return names
def ready_by_missing_ranks(size, announcements):  # Keeps who is missing, and returns a tuple.
    missing: dict[str, list[int]] = {}
    names: tuple[str, ...] = ()
    for rank, name in announcements:
        left = missing.get(name) or list(range(size))
        left.remove(rank)
        missing[name] = left
        if not left: names += (name,)
    return names
def culprits_by_removal(size, announcements, now, deadline_s):
    """Begins with all ranks for each name, and takes away who has announced it."""
    missing: dict[str, list[int]] = {}
    until: dict[str, int] = {}
    for seconds, rank, name in announcements:
        until[name] = min(until.get(name, seconds + deadline_s), seconds + deadline_s)
        missing.setdefault(name, list(range(size))).remove(rank)
    for name in list(missing):
        if not missing[name] or until[name] > now: del missing[name]
    return missing
def culprits_name_by_name(size, announcements, now, deadline_s):  # Looks through all announcements for each name.
    found = {}
    for name in dict.fromkeys(each for _, _, each in announcements):
        mine = [(seconds, rank) for seconds, rank, each in announcements if each == name]
        there = {rank for _, rank in mine}
        if min(mine)[0] <= now - deadline_s and len(there) < size: found[name] = sorted(set(range(size)) - there)
    return found
def order_in_one_list(snapshots, name):  # (time, what, rank), sorted as tuples.
    events = []
    for rank in range(len(snapshots)):
        newest = [one for one in snapshots[rank]["collectives"] if name in one["names"]][-1]
        events.append((newest["submitted"][0], "submitted", rank))
        events += [(newest[key], key, rank) for key in ("announced", "arrived", "begun", "done")]
        if rank == 0: arrived = newest["arrived"]
    heard = [at for tensor, _, at in snapshots[0]["answers"] if tensor == name and at <= arrived]
    events.append((max(heard), "complete", 0))
    events.sort(key=lambda event: event[0])
    return [event[1:] for event in events]
def order_by_numpy(snapshots, name):  # Times in one array, whose order argsort gives.
    words, times = [], []
    for rank, snapshot in enumerate(snapshots):
        mine = {}
        for one in snapshot["collectives"]: mine = one if name in one["names"] else mine
        for what in ("submitted", "announced", "arrived", "begun", "done"):
            words.append((what, rank))
            times.append(np.ravel(mine[what])[0])
    heard = [answer[2] for answer in snapshots[0]["answers"] if answer[0] == name]
    times.append([at for at in heard if at <= times[2]][-1])
    words.append(("complete", 0))
    return [words[place] for place in np.argsort(times, kind="stable")]
def late_by_numpy(snapshots):  # Sets of the indices; arrays of the times.
    tables = [{one["index"]: one["announced"] for one in snapshot["collectives"]} for snapshot in snapshots]
    found = []
    for index in sorted(set.intersection(*map(set, tables))):
        times = np.array([table[index] for table in tables])
        last = int(np.argmax(times))
        found.append((index, last, list((times[last] - times) / 1000)))
    return found
def late_in_groups(snapshots):  # Groups of the sorted (index, rank, time).
    records = sorted(
        (one["index"], rank, one["announced"]) for rank, each in enumerate(snapshots) for one in each["collectives"]
    )
    result = []
    for index, group in groupby(records, key=lambda record: record[0]):
        times = [at for _, _, at in group]
        if len(times) < len(snapshots): continue
        last = max(range(len(times)), key=times.__getitem__)
        result.append((index, last, tuple((times[last] - at) / 1000 for at in times)))
    return result
class _Coordinator:
    """Rank 0's book: which ranks have announced which name."""
    def __init__(self, size):
        self.size = size
        self.seen: defaultdict[str, set[int]] = defaultdict(set)
    def hears(self, rank, name):
        self.seen[name].add(rank)
        if len(self.seen[name]) < self.size: return False
        del self.seen[name]
        return True
def ready_by_a_coordinator(size, announcements):  # A class that keeps sets.
    coordinator = _Coordinator(size)
    return [name for rank, name in announcements if coordinator.hears(rank, name)]
def ready_by_a_generator(size, announcements):  # Bits of the ranks in a number; a generator.
    bits: dict[str, int] = {}
    for rank, name in announcements:
        bits[name] = bits.get(name, 0) | 1 << rank
        if bits[name] == (1 << size) - 1:
            bits[name] = 0
            yield name
def culprits_by_a_table(size, announcements, now, deadline_s):  # A row of booleans for each name.
    first: dict[str, float] = {}
    table = defaultdict(lambda: np.zeros(size, dtype=bool))
    for seconds, rank, name in announcements:
        first.setdefault(name, seconds)
        table[name][rank] = True
    late = (name for name in first if now - first[name] >= deadline_s and not table[name].all())
    return {name: np.flatnonzero(~table[name]) for name in late}
def culprits_in_one_dict(size, announcements, now, deadline_s):
    """Only what was announced early counts; then who of all is missing."""
    early = {name for seconds, _, name in announcements if seconds + deadline_s <= now}
    there = {(rank, name) for _, rank, name in announcements}
    missing = {name: [rank for rank in range(size) if (rank, name) not in there] for name in early}
    return {name: ranks for name, ranks in missing.items() if ranks}
RIGHT = {
    "21.ready": [ready_by_counting, ready_by_missing_ranks, ready_by_a_coordinator, ready_by_a_generator],
    "21.culprits": [culprits_by_removal, culprits_name_by_name, culprits_by_a_table, culprits_in_one_dict],
    "21.order": [order_by_a_dict, order_from_the_end, order_in_one_list, order_by_numpy],
    "21.late": [late_rank_by_rank, late_by_sorting, late_by_numpy, late_in_groups],
}
