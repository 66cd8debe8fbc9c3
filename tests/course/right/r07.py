"""Right answers of lesson 07 that are unlike the official ones."""

from __future__ import annotations

from typing import Any

from workbench.course.tasks.t07_fusion import finish_time, plan_buckets


def from_the_end(sizes: Any, threshold: Any) -> Any:
    """Packed from the last tensor on: other buckets, as few."""
    buckets: list[list[int]] = []
    for size in reversed(sizes):
        if buckets and sum(buckets[0]) + size <= threshold:
            buckets[0].insert(0, size)
        else:
            buckets.insert(0, [size])
    return buckets


def cut_by_places(sizes: Any, threshold: Any) -> Any:
    """First where to cut, then the pieces; arrays of places, tuples as buckets."""
    cuts, total = [0], 0
    for place, size in enumerate(sizes):
        if place > cuts[-1] and total + size > threshold:
            cuts.append(place)
            total = 0
        total += size
    ends = [*cuts[1:], len(sizes)]
    return [tuple(sizes[begin:end]) for begin, end in zip(cuts, ends, strict=True) if begin < end]


def every_whole_number(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    """Tries all thresholds that there are."""
    return min(range(sum(sizes) + 1), key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))


def the_largest_best(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    """Of several best thresholds the largest, and half a unit more."""
    tried = {one: finish_time(plan_buckets(sizes, one), ready, alpha, beta) for one in range(sum(sizes), -1, -1)}
    return min(tried, key=lambda one: tried[one]) + 0.5


RIGHT = {
    "07.plan_buckets": [from_the_end, cut_by_places],
    "07.best_threshold": [every_whole_number, the_largest_best],
}
