"""The training over logical shards: the bits depend on neither ranks nor deaths."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from workbench.course.simulator import Kill, simulate
from workbench.course.tasks import task
from workbench.course.training.logical_shards import BATCH, SHARDS, STEPS, deal, gradient, samples, train

RESHARD = task("15.reshard").reference


def alone() -> Any:
    """The weights by a plain loop, without ranks or simulator."""
    weights = np.zeros((64, 10))
    for step in range(STEPS):
        total = np.zeros_like(weights)
        for shard in range(SHARDS):
            total += gradient(weights, step, shard)
        weights = weights - 0.5 * total
    return weights


def test_any_number_of_ranks_gives_the_bits_of_a_plain_loop() -> None:
    """On every rank, and every sample is used once."""
    for n in [1, 2, 3, 4, 5, 8, 9]:
        wanted = alone().tobytes()
        for weights, used in simulate(n, train, RESHARD).results:
            assert weights.tobytes() == wanted
            assert len(set(used)) == len(used) == STEPS * BATCH


def test_deaths_change_no_bit() -> None:
    """Up to all ranks but one, killed at any time or message, also amid a recovery: the same bits."""
    for seed in range(20):
        drawn = random.Random(seed)
        n = drawn.choice([2, 3, 4, 5])
        victims = drawn.sample(range(n), drawn.randint(1, n - 1))
        kills = [
            Kill(rank, at_s=drawn.uniform(0, 0.03)) if drawn.random() < 0.5 else Kill(rank, message=drawn.randrange(30))
            for rank in victims
        ]
        run = simulate(n, train, RESHARD, kills=kills)
        wanted, everything = (
            alone().tobytes(),
            sorted({int(i) for s in range(STEPS) for k in range(SHARDS) for i in samples(s, k)}),
        )
        survivors = [rank for rank in range(n) if rank not in run.died]
        for rank in survivors:
            weights, used = run.results[rank]
            assert weights.tobytes() == wanted
            assert sorted(used) == everything


def test_a_lost_shard_is_an_error() -> None:
    """The training does not go on without a part of its data."""
    with pytest.raises(ValueError, match="not each of 0 … 7 once"):
        simulate(3, train, lambda held, alive: {rank: held[rank] for rank in alive}, kills=[Kill(1, message=1)])


def by_the_order_of_a_dict(held: Any, alive: Any) -> Any:
    """Right for whoever asks alone; two ranks give different answers."""
    now = {rank: sorted(held[rank]) for rank in alive}
    for shard in sorted(shard for rank in held if rank not in now for shard in held[rank]):
        now[min(now, key=lambda rank: len(now[rank]))].append(shard)
    return now


def test_ranks_that_disagree_are_an_error() -> None:
    """They know each other in different orders, so an answer that depends on it shows in the training, too."""
    with pytest.raises(ValueError, match="not each of 0 … 7 once"):
        simulate(4, train, by_the_order_of_a_dict, kills=[Kill(1, message=1)])


def test_shards_are_dealt_out_in_turns() -> None:
    """Also to members whose numbers have gaps; together they are all shards."""
    held = deal([1, 4, 5])
    assert sorted(shard for mine in held.values() for shard in mine) == list(range(SHARDS))
    assert list(held) == [1, 4, 5]
