"""Right answers of lesson 15 that are unlike the official ones."""

from __future__ import annotations

from typing import Any

import numpy as np


def least_of_all_tried(step_s: Any, commit_s: Any, restart_s: Any, mtbf_s: Any, ranks: Any) -> Any:
    """The interval with the least of what commits and failures cost, by trying sizes 2 % apart."""
    job_s = mtbf_s / ranks
    tried = {max(1, round(1.02**power)) for power in range(1000)}
    return min(tried, key=lambda steps: commit_s / (steps * step_s) + steps * step_s / 2 / job_s)


def by_its_rate(step_s: Any, commit_s: Any, restart_s: Any, mtbf_s: Any, ranks: Any) -> Any:
    """From the rate of failures, cut off and not rounded."""
    failures_per_s = ranks / mtbf_s
    return int(max(1.0, (2 * commit_s / failures_per_s) ** 0.5 // step_s))


def from_the_highest(held: Any, alive: Any) -> Any:
    """The free shards from the highest on; of several ranks with the fewest, the highest takes it."""
    now = {rank: set(held[rank]) for rank in alive}
    free = {shard for rank, shards in held.items() if rank not in now for shard in shards}
    for shard in sorted(free, reverse=True):
        taker = max(now, key=lambda rank: (-len(now[rank]), rank))
        now[taker].add(shard)
    return {rank: sorted(shards) for rank, shards in now.items()}


def round_by_round(held: Any, alive: Any) -> Any:
    """Levels are filled: nobody gets a second one before all have as many."""
    ranks = sorted(alive)
    now = {rank: list(held[rank]) for rank in ranks}
    free = sorted(shard for rank in sorted(held) if rank not in alive for shard in held[rank])
    level = min(map(len, now.values()))
    while free:
        for rank in ranks:
            if free and len(now[rank]) <= level:
                now[rank].append(free.pop(0))
        level += 1
    return {rank: [int(shard) for shard in np.sort(shards)] for rank, shards in now.items()}


RIGHT = {
    "15.commit_every": [least_of_all_tried, by_its_rate],
    "15.reshard": [from_the_highest, round_by_round],
}
