"""A training over logical shards: ranks come and go, the bits stay.

What one step computes is cut into a fixed number of *logical shards*. A shard, not a rank, owns its samples and its
random numbers: both follow from the step and the shard alone. Each rank computes the gradients of the shards that it
holds, and everybody adds up all of them in the order of the shards. So the sum has the same bits on any number of
ranks, whoever holds which shard.

This is the plain way, to be read: the ranks exchange one gradient per shard, S·K bytes where an allreduce has about
2·K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench import data
from workbench.course.simulator import Comm, RankDiedError

Array = NDArray[np.float64]
Held = dict[int, list[int]]
"""By rank, its shards."""

SHARDS, STEPS, BATCH, RATE, NOISE = 8, 6, 64, 0.5, 0.05
STEP_S = 1e-3
"""Virtual seconds that a shard's gradient takes."""


def samples(step: int, shard: int) -> NDArray[np.int64]:
    """The samples of a shard in a step: a part of the batch, whoever computes it.

    Example:
        >>> sorted({int(one) for shard in range(SHARDS) for one in samples(0, shard)}) == sorted(
        ...     {int(one) for one in np.random.default_rng(0).permutation(len(data.digits().train_x))[:BATCH]}
        ... )
        True
    """
    order = np.random.default_rng(0).permutation(len(_digits()[1]))
    size = BATCH // SHARDS
    return order[step * BATCH + shard * size :][:size]


def gradient(weights: Array, step: int, shard: int) -> Array:
    """Of softmax regression on a shard's samples; the noise on the images is the shard's own, too."""
    mine, (images, labels) = samples(step, shard), _digits()
    x = images[mine] + np.random.default_rng([step, shard]).normal(0, NOISE, (len(mine), 64))
    scores = np.exp(x @ weights)
    off = scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[labels[mine]]
    return np.asarray(x.T @ off / BATCH)


@cache
def _digits() -> tuple[Array, NDArray[np.int64]]:
    digits = data.digits()
    return digits.train_x.reshape(-1, 64).astype(float), digits.train_y


def deal(members: Sequence[int], shards: int = SHARDS) -> Held:
    """The shards as they are held at the beginning.

    Example:
        >>> deal([0, 1, 2])
        {0: [0, 3, 6], 1: [1, 4, 7], 2: [2, 5]}
    """
    return {member: list(range(shards))[place :: len(members)] for place, member in enumerate(members)}


def train(comm: Comm, reshard: Callable[[Held, list[int]], Mapping[int, Sequence[int]]]) -> tuple[Array, list[int]]:
    """Train on ranks that may die; the weights, and every sample that went into them.

    Args:
        comm: of the simulator.
        reshard: (shards by rank, who lives) → shards by rank; each survivor calls it for itself.
    """
    me, step, weights, used = comm.members[comm.rank], 0, np.zeros((64, 10)), list[int]()
    before, held, died = (step, weights, used), deal(comm.members), False
    while step < STEPS:
        try:
            if died:
                if step > min(comm.allgather(step)):  # this rank had done the step, another one had not
                    step, weights, used = before
                held, died = _again(reshard, comm.bcast(held), comm.members, me), False
            comm.compute(STEP_S * len(held[me]))
            mine = {shard: gradient(weights, step, shard) for shard in held[me]}
            parts = _complete(comm.allgather(mine))
        except RankDiedError:
            comm, died = comm.shrink(), True
            continue
        total = np.zeros_like(weights)
        for shard in range(SHARDS):  # in this order, on every rank
            total += parts[shard]
        before = (step, weights, used)
        weights = weights - RATE * total
        used = used + [int(one) for shard in range(SHARDS) for one in samples(step, shard)]
        step += 1
    return weights, used


def _again(reshard: Callable[..., Any], held: Held, members: Sequence[int], me: int) -> Held:
    """As this rank works it out. It begins with itself, as ranks do that learn of each other one by one."""
    begin = members.index(me)
    alive = [*members[begin:], *members[:begin]]
    known = {rank: list(held[rank]) for rank in sorted(held, key=lambda rank: (rank - me) % (max(held) + 1))}
    return {rank: list(shards) for rank, shards in reshard(known, alive).items()}


def _complete(found: Sequence[Mapping[int, Array]]) -> dict[int, Array]:
    """All shards' gradients.

    Raises:
        ValueError: one is missing, or there twice.
    """
    shards = sorted(shard for part in found for shard in part)
    if shards != list(range(SHARDS)):
        raise ValueError(f"The ranks together computed the shards {shards}, not each of 0 … {SHARDS - 1} once.")
    return {shard: value for part in found for shard, value in part.items()}
