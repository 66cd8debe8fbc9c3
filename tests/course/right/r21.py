"""Right answers of lesson 21 that are unlike the official ones."""

from __future__ import annotations

from typing import Any


def order_by_a_dict(snapshots: Any, name: Any) -> Any:
    """From event to time; then sorted by the time."""
    at: dict[tuple[str, int], int] = {}
    for rank, snapshot in enumerate(snapshots):
        for one in snapshot["collectives"]:
            if name in one["names"]:  # later ones replace earlier ones
                at["submitted", rank] = one["submitted"][0]
                at |= {(what, rank): one[what] for what in ("announced", "arrived", "begun", "done")}
    for tensor, _, heard in snapshots[0]["answers"]:
        if tensor == name and heard <= at["arrived", 0]:
            at["complete", 0] = heard
    return sorted(at, key=lambda event: at[event])


def order_from_the_end(snapshots: Any, name: Any) -> Any:
    """Looks for the newest backwards, and returns lists in a tuple."""
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


def late_rank_by_rank(snapshots: Any) -> Any:
    """Collects by index, and keeps those that have as many times as there are ranks."""
    times: dict[int, list[int]] = {}
    for snapshot in snapshots:
        for one in snapshot["collectives"]:
            times.setdefault(one["index"], []).append(one["announced"])
    complete = {index: each for index, each in times.items() if len(each) == len(snapshots)}
    return [(i, each.index(max(each)), [(max(each) - t) / 1e3 for t in each]) for i, each in sorted(complete.items())]


def late_by_sorting(snapshots: Any) -> Any:
    """Sorts (time, rank) of each collective; the last of them is the last."""
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


def ready_by_counting(size: Any, announcements: Any) -> Any:
    """A name is ready when it has been announced a multiple of size times: nobody announces it twice in a step."""
    times: dict[str, int] = {}
    names = []
    for _, name in announcements:
        times[name] = times.get(name, 0) + 1
        if times[name] % size == 0:
            names.append(name)
    return names


def ready_by_missing_ranks(size: Any, announcements: Any) -> Any:
    """Keeps who is missing, and returns a tuple."""
    missing: dict[str, list[int]] = {}
    names: tuple[str, ...] = ()
    for rank, name in announcements:
        left = missing.get(name) or list(range(size))
        left.remove(rank)
        missing[name] = left
        if not left:
            names += (name,)
    return names


def culprits_by_removal(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    """Begins with all ranks for each name, and takes away who has announced it."""
    missing: dict[str, list[int]] = {}
    until: dict[str, int] = {}
    for seconds, rank, name in announcements:
        until[name] = min(until.get(name, seconds + deadline_s), seconds + deadline_s)
        missing.setdefault(name, list(range(size))).remove(rank)
    for name in list(missing):
        if not missing[name] or until[name] > now:
            del missing[name]
    return missing


def culprits_name_by_name(size: Any, announcements: Any, now: Any, deadline_s: Any) -> Any:
    """Looks through all announcements for each name."""
    found = {}
    for name in dict.fromkeys(each for _, _, each in announcements):
        mine = [(seconds, rank) for seconds, rank, each in announcements if each == name]
        there = {rank for _, rank in mine}
        if min(mine)[0] <= now - deadline_s and len(there) < size:
            found[name] = sorted(set(range(size)) - there)
    return found


RIGHT = {
    "21.ready": [ready_by_counting, ready_by_missing_ranks],
    "21.culprits": [culprits_by_removal, culprits_name_by_name],
    "21.order": [order_by_a_dict, order_from_the_end],
    "21.late": [late_rank_by_rank, late_by_sorting],
}
