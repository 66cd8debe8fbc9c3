"""Right answers of lesson 05 that are unlike the official ones."""

from __future__ import annotations

from hashlib import sha256
from random import Random

import numpy as np
import torch


def shard_by_blocks(samples, epoch, seed, n, rank):
    """Not every n-th, but a piece; and the order by sorting random keys."""
    order = np.argsort(np.random.default_rng((epoch, seed, 3)).random(samples)).tolist()
    length = -(-samples // n)
    return [order[place % samples] for place in range(rank * length, (rank + 1) * length)]
def shard_by_hash(samples, epoch, seed, n, rank):  # Without numpy: the order by a hash of seed, epoch and sample.
    order = sorted(range(samples), key=lambda one: sha256(f"{seed} {epoch} {one}".encode()).digest())
    while samples and len(order) % n:
        order.append(order[len(order) % samples if len(order) < 2 * samples else len(order) - samples])
    return order[rank::n]
def two_sums(comm, values):  # Two plain numbers, in two messages.
    return float(comm.allreduce(float(values.sum())) / comm.allreduce(len(values)))
def weighted_means(comm, values):  # The means of the ranks, each with its share of all values as weight.
    share = len(values) / comm.allreduce(len(values))
    return float(comm.allreduce(share * values.mean() if len(values) else 0.0))
def gathered_pairs(comm, values):  # Everybody's sum and count to everybody, and added up there.
    pairs = comm.allgather((float(values.sum()), len(values)))
    return sum(total for total, _ in pairs) / sum(number for _, number in pairs)
def shard_by_torch(samples, epoch, seed, n, rank):
    """torch's generator, with one number that a hash makes of both; a tensor."""
    generator = torch.Generator().manual_seed(hash((seed, epoch)))
    order = torch.randperm(samples, generator=generator)
    share = -(-samples // n)
    return order.repeat(n)[: share * n][rank::n]
def shard_by_shuffle(samples, epoch, seed, n, rank):
    """The standard library shuffles, np.resize pads, rows are dealt to the ranks."""
    order = list(range(samples))
    Random(f"{seed}/{epoch}").shuffle(order)
    rows = -(-samples // n)
    return np.resize(np.array(order, dtype=int), (rows, n))[:, rank]
def shard_by_random_state(samples, epoch, seed, n, rank):
    """numpy's older generator takes a list, too; each rank goes on from its own place in the circle."""
    order = np.random.RandomState([seed, epoch]).permutation(samples)
    return [order[place % samples] for place in range(rank, samples + -samples % n, n)]
def sum_in_a_buffer(comm, values):  # Allreduce of an array of two numbers.
    both = np.empty(2)
    comm.Allreduce(np.array([np.sum(values), values.size], dtype=float), both)
    return np.divide(*both)
def weighed_by_numpy(comm, values):  # np.average with the numbers as weights, on rank 0.
    parts = comm.gather((values.mean() if values.size else 0.0, values.size))
    if comm.rank == 0:
        means, sizes = np.array(parts).T
        parts = np.average(means, weights=sizes)
    return comm.bcast(parts)
RIGHT = {
    "05.shard": [shard_by_blocks, shard_by_hash, shard_by_torch, shard_by_random_state, shard_by_shuffle],
    "05.weighted_mean": [two_sums, weighted_means, gathered_pairs, sum_in_a_buffer, weighed_by_numpy],
}
