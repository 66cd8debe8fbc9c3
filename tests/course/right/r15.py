"""Right answers of lesson 15 that are unlike the official ones."""

from __future__ import annotations

import heapq
import math

import numpy as np


def least_of_all_tried(step_s, commit_s, restart_s, mtbf_s, ranks):
    """The interval with the least of what commits and failures cost, by trying sizes 2 % apart."""
    job_s = mtbf_s / ranks
    tried = {max(1, round(1.02**power)) for power in range(1000)}
    return min(tried, key=lambda steps: commit_s / (steps * step_s) + steps * step_s / 2 / job_s)
def by_its_rate(step_s, commit_s, restart_s, mtbf_s, ranks):  # From the rate of failures, cut off and not rounded.
    failures_per_s = ranks / mtbf_s
    return int(max(1.0, (2 * commit_s / failures_per_s) ** 0.5 // step_s))
def from_the_highest(held, alive):
    """The free shards from the highest on; of several ranks with the fewest, the highest takes it."""
    now = {rank: set(held[rank]) for rank in alive}
    free = {shard for rank, shards in held.items() if rank not in now for shard in shards}
    for shard in sorted(free, reverse=True):
        taker = max(now, key=lambda rank: (-len(now[rank]), rank))
        now[taker].add(shard)
    return {rank: sorted(shards) for rank, shards in now.items()}
def round_by_round(held, alive):  # Levels are filled: nobody gets a second one before all have as many.
    ranks = sorted(alive)
    now = {rank: list(held[rank]) for rank in ranks}
    free = sorted(shard for rank in sorted(held) if rank not in alive for shard in held[rank])
    level = min(map(len, now.values()))
    while free:
        for rank in ranks:
            if free and len(now[rank]) <= level: now[rank].append(free.pop(0))
        level += 1
    return {rank: [int(shard) for shard in np.sort(shards)] for rank, shards in now.items()}
def by_youngs_formula(step_s, commit_s, restart_s, mtbf_s, ranks):
    """The root of 2 · commit · mean time between the job's failures, rounded up."""
    interval_s = math.sqrt(2 * commit_s * (mtbf_s / ranks))
    return max(1, math.ceil(interval_s / step_s))
def by_ternary_search(step_s, commit_s, restart_s, mtbf_s, ranks):
    """What is lost has one least value: a search that halves; restarts cost the same everywhere."""
    def lost(steps): return commit_s / (steps * step_s) + (restart_s + steps * step_s / 2) * ranks / mtbf_s
    low, high = 1, 2
    while lost(high) < lost(high // 2): high *= 2
    while low < high:
        middle = (low + high) // 2
        if lost(middle) <= lost(middle + 1): high = middle
        else: low = middle + 1
    return np.int64(low)
def from_a_heap(held, alive):  # A heap of (number of shards, rank).
    result = {rank: list(held[rank]) for rank in alive}
    heap = [(len(shards), rank) for rank, shards in result.items()]
    heapq.heapify(heap)
    for shard in sorted(shard for rank in held for shard in held[rank] if rank not in result):
        many, rank = heapq.heappop(heap)
        result[rank].append(shard)
        heapq.heappush(heap, (many + 1, rank))
    for shards in result.values(): shards.sort()
    return result
def recursively(held, alive):  # Deals out the least free shard and calls itself; nothing is changed.
    now = {rank: tuple(shards) for rank, shards in held.items() if rank in alive}
    orphans = sorted(
        {shard for shards in held.values() for shard in shards} - {one for mine in now.values() for one in mine}
    )
    def deal(owners, free):
        if not free: return owners
        poorest = min(owners, key=lambda rank: (len(owners[rank]), rank))
        return deal({**owners, poorest: (*owners[poorest], free[0])}, free[1:])
    return {rank: sorted(shards) for rank, shards in deal(now, orphans).items()}
RIGHT = {
    "15.commit_every": [least_of_all_tried, by_its_rate, by_youngs_formula, by_ternary_search],
    "15.reshard": [from_the_highest, round_by_round, from_a_heap, recursively],
}
