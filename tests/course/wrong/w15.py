"""Wrong solutions of lesson 15, each with what the check must say."""

from __future__ import annotations

import math
import random

from wrong_answers import Answers

wrong = Answers()


@wrong(
    "15.commit_every", "with ranks=16 your result is 16,000, with ranks=64 it is 16,000; expected half as many: n ranks"
)
def forgets_the_ranks(step_s, commit_s, restart_s, mtbf_s, ranks):
    return max(1, round(math.sqrt(2 * commit_s * mtbf_s) / step_s))
@wrong("15.commit_every", "expected half as many: n ranks fail n times as often as one")
def more_ranks_live_longer(step_s, commit_s, restart_s, mtbf_s, ranks):
    return max(1, round(math.sqrt(2 * commit_s * mtbf_s * ranks) / step_s))
@wrong("15.commit_every", "Too often. What does a failure undo: a whole interval, or less on average?")
def forgets_the_two(step_s, commit_s, restart_s, mtbf_s, ranks):
    return max(1, round(math.sqrt(commit_s * mtbf_s / ranks) / step_s))
@wrong("15.commit_every", "Too seldom. What does a failure undo on average")
def twice_the_root(step_s, commit_s, restart_s, mtbf_s, ranks):
    return max(1, round(2 * math.sqrt(commit_s * mtbf_s / ranks) / step_s))
@wrong("15.commit_every", "the square root of the MTBF")
def no_root(step_s, commit_s, restart_s, mtbf_s, ranks): return max(1, round(2 * commit_s * mtbf_s / ranks / step_s))
@wrong("15.commit_every", "the square root of what a commit costs")
def root_of_the_mtbf_alone(step_s, commit_s, restart_s, mtbf_s, ranks):
    return max(1, round(math.sqrt(mtbf_s / ranks) / step_s))
@wrong("15.commit_every", "the interval in seconds stays, and is half as many steps")
def root_of_the_steps_too(step_s, commit_s, restart_s, mtbf_s, ranks):
    return max(1, round(math.sqrt(2 * commit_s * mtbf_s / ranks / step_s)))
@wrong("15.commit_every", "with ranks=16 your result is 1,000, with ranks=64 it is 1,000")
def constant(step_s, commit_s, restart_s, mtbf_s, ranks): return 1000
@wrong("15.commit_every", "Is your result in seconds?")
def in_seconds(step_s, commit_s, restart_s, mtbf_s, ranks):
    return max(1, round(math.sqrt(2 * commit_s * mtbf_s / ranks)))
@wrong("15.commit_every", "the square root of what a commit costs")
def restart_is_a_commit(step_s, commit_s, restart_s, mtbf_s, ranks):
    return max(1, round(math.sqrt(2 * (commit_s + restart_s) * mtbf_s / ranks) / step_s))
@wrong("15.commit_every", "is 0: one step is the least")
def never_in_a_long_step(step_s, commit_s, restart_s, mtbf_s, ranks):
    return int(math.sqrt(2 * commit_s * mtbf_s / ranks) / step_s)
@wrong("15.commit_every", "and no whole number")
def not_whole(step_s, commit_s, restart_s, mtbf_s, ranks): return math.sqrt(2 * commit_s * mtbf_s / ranks) / step_s
@wrong("15.reshard", "shard 1 is held by nobody")
def loses_the_shards_of_the_dead(held, alive): return {rank: sorted(held[rank]) for rank in sorted(alive)}
@wrong("15.reshard", "shard 0 is held by ranks [1, 2]: its samples would count 2 times")
def everybody_takes_them(held, alive):
    free = [shard for rank in held if rank not in alive for shard in held[rank]]
    return {rank: sorted([*held[rank], *free]) for rank in sorted(alive)}
@wrong("15.reshard", "every step would wait for rank 0")
def the_first_takes_all(held, alive):
    now = {rank: sorted(held[rank]) for rank in sorted(alive)}
    free = [shard for rank in held if rank not in now for shard in held[rank]]
    now[min(now)] = sorted(now[min(now)] + free)
    return now
@wrong("15.reshard", "every step would wait for rank")
def begins_again_for_each_of_the_dead(held, alive):
    now = {rank: sorted(held[rank]) for rank in sorted(alive)}
    ranks = list(now)
    for dead in sorted(rank for rank in held if rank not in now):
        for place, shard in enumerate(sorted(held[dead])): now[ranks[place % len(ranks)]].append(shard)
    return {rank: sorted(shards) for rank, shards in now.items()}
@wrong("15.reshard", "your function moves it and its state without need")
def deals_all_anew(held, alive):
    shards = sorted(shard for mine in held.values() for shard in mine)
    return {rank: shards[place :: len(alive)] for place, rank in enumerate(sorted(alive))}
@wrong("15.reshard", "your result has the ranks [0, 1], alive are [1, 2]")
def new_numbers_for_the_ranks(held, alive):
    shards = sorted(shard for mine in held.values() for shard in mine)
    return {rank: shards[rank :: len(alive)] for rank in range(len(alive))}
@wrong("15.reshard", "your result has the ranks [0, 1], alive are [0]")
def keeps_an_entry_for_the_dead(held, alive):
    return {rank: sorted(shards) if rank in alive else [] for rank, shards in held.items()}
@wrong("15.reshard", "sort it first")
def as_the_dict_happens_to_be(held, alive):
    now = {rank: sorted(held[rank]) for rank in alive}
    for rank in held:
        for shard in held[rank]:
            if rank not in now:
                fewest = min(now, key=lambda one: len(now[one]))
                now[fewest] = sorted([*now[fewest], shard])
    return now
@wrong("15.reshard", "one rank finds that rank")
def draws_lots(held, alive):
    now = {rank: sorted(held[rank]) for rank in sorted(alive)}
    for shard in sorted(shard for rank in held if rank not in now for shard in held[rank]):
        fewest = min(now, key=lambda rank: (len(now[rank]), random.random()))
        now[fewest] = sorted([*now[fewest], shard])
    return now
@wrong("15.reshard", "your function changes held")
def changes_held(held, alive):
    free = sorted(shard for rank in held if rank not in alive for shard in held[rank])
    for shard in free: held[min(sorted(alive), key=lambda rank: len(held[rank]))].append(shard)
    return {rank: sorted(held[rank]) for rank in alive}
@wrong("15.reshard", "not in increasing order")
def not_in_order(held, alive):
    now = {rank: sorted(held[rank]) for rank in sorted(alive)}
    for shard in sorted(shard for rank in held if rank not in now for shard in held[rank]):
        now[min(now, key=lambda rank: (len(now[rank]), rank))].append(shard)
    return now
