"""Right answers of lesson 07 that are unlike the official ones."""

from __future__ import annotations

from functools import cache

import numpy as np

from workbench.course.tasks.t07_fusion import finish_time, plan_buckets


def from_the_end(sizes, threshold):  # Packed from the last tensor on: other buckets, as few.
    buckets: list[list[int]] = []
    for size in reversed(sizes):
        if buckets and sum(buckets[0]) + size <= threshold: buckets[0].insert(0, size)
        else: buckets.insert(0, [size])
    return buckets
def cut_by_places(sizes, threshold):  # First where to cut, then the pieces; arrays of places, tuples as buckets.
    cuts, total = [0], 0
    for place, size in enumerate(sizes):
        if place > cuts[-1] and total + size > threshold:
            cuts.append(place)
            total = 0
        total += size
    ends = [*cuts[1:], len(sizes)]
    return [tuple(sizes[begin:end]) for begin, end in zip(cuts, ends, strict=True) if begin < end]
def every_whole_number(sizes, ready, alpha, beta):  # Tries all thresholds that there are.
    return min(range(sum(sizes) + 1), key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))
def the_largest_best(sizes, ready, alpha, beta):  # Of several best thresholds the largest, and half a unit more.
    tried = {one: finish_time(plan_buckets(sizes, one), ready, alpha, beta) for one in range(sum(sizes), -1, -1)}
    return min(tried, key=lambda one: tried[one]) + 0.5
def packed_by_a_generator(sizes, threshold):  # A bucket is handed out when the next tensor has no room in it.
    def buckets():
        open_one: list[int] = []
        for size in sizes:
            if open_one and sum(open_one) + size > threshold:
                yield open_one
                open_one = []
            open_one = [*open_one, size]
        if open_one: yield open_one
    return list(buckets())
def fewest_of_all_cuts(sizes, threshold):  # Dynamic programming: the best rest behind every first bucket.
    @cache
    def best(start):
        if start == len(sizes): return ()
        plans = []
        for stop in range(start + 1, len(sizes) + 1):
            if stop - start > 1 and sum(sizes[start:stop]) > threshold: break
            plans.append((tuple(sizes[start:stop]), *best(stop)))
        return min(plans, key=len)
    return [list(bucket) for bucket in best(0)]
def only_sums_of_neighbours(sizes, ready, alpha, beta):
    """A plan changes only where the threshold is the sum of some tensors in a row."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    candidates = sorted({int(b - a) for i, a in enumerate(ends) for b in ends[i:]})
    times = [finish_time(plan_buckets(sizes, one), ready, alpha, beta) for one in candidates]
    return candidates[int(np.argmin(times))]
def best_in_a_loop(sizes, ready, alpha, beta):  # Every whole number, the earliest so far kept; numpy's number.
    best, earliest = np.int64(0), float("inf")
    for threshold in np.arange(sum(sizes) + 1):
        at = finish_time(plan_buckets(sizes, int(threshold)), ready, alpha, beta)
        if at < earliest: best, earliest = threshold, at
    return best
RIGHT = {
    "07.plan_buckets": [from_the_end, cut_by_places, packed_by_a_generator, fewest_of_all_cuts],
    "07.best_threshold": [every_whole_number, the_largest_best, only_sums_of_neighbours, best_in_a_loop],
}
