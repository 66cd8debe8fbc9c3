"""Wrong solutions of lesson 05, each with what the check must say."""

from __future__ import annotations

import random

import numpy as np
import torch
from wrong_answers import Answers

wrong = Answers()


@wrong("05.shard", "Do all ranks deal from the same order?")
def each_rank_its_own_seed(samples, epoch, seed, n, rank):
    order = np.random.default_rng([seed, epoch, rank]).permutation(samples)
    return np.resize(order, -(-samples // n) * n)[rank::n]
@wrong("05.shard", "epochs 0 and 1, n = 1: 40 of 40 samples are followed by the same sample in both")
def forgets_the_epoch(samples, epoch, seed, n, rank):
    order = np.random.default_rng(seed).permutation(samples)
    return np.resize(order, -(-samples // n) * n)[rank::n]
@wrong("05.shard", "in 100 epochs rank 0 sees 10 of 40")
def shuffles_its_own_part(samples, epoch, seed, n, rank):
    mine = np.resize(np.arange(samples), -(-samples // n) * n)[rank::n]
    return np.random.default_rng([seed, epoch]).permutation(mine)
@wrong("05.shard", "seed 0 in epoch 1 and seed 1 in epoch 0 give the same order")
def adds_seed_and_epoch(samples, epoch, seed, n, rank):
    order = np.random.default_rng(seed + epoch).permutation(samples)
    return np.resize(order, -(-samples // n) * n)[rank::n]
@wrong("05.shard", "samples = 1, n = 2, rank 1: your result has 0 samples, expected 1")
def leaves_the_end_uneven(samples, epoch, seed, n, rank):
    return np.random.default_rng([seed, epoch]).permutation(samples)[rank::n]
@wrong("05.shard", "samples = 1, n = 2, rank 0: your result has 0 samples, expected 1")
def drops_the_end(samples, epoch, seed, n, rank):
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    return order[: samples // n * n][rank::n]
@wrong("05.shard", "sample 0 comes 3 times. Your result is right where n divides samples: which samples")
def pads_with_the_last_one(samples, epoch, seed, n, rank):
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    missing = -samples % n
    return np.concatenate([order, np.repeat(order[-1:], missing)])[rank::n]
@wrong("05.shard", "samples = 1, n = 3, rank 2: your result has 0 samples, expected 1")
def pads_only_once(samples, epoch, seed, n, rank):
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    return np.concatenate([order, order[: -samples % n]])[rank::n]
@wrong("05.shard", "Is it shuffled anew?")
def starts_later_each_epoch(samples, epoch, seed, n, rank):
    order = np.roll(np.random.default_rng(seed).permutation(samples), epoch)
    return np.resize(order, -(-samples // n) * n)[rank::n]
@wrong("05.shard", "it changes numpy's own generator")
def seeds_numpy_itself(samples, epoch, seed, n, rank):
    np.random.seed([seed, epoch])
    return np.resize(np.random.permutation(samples), -(-samples // n) * n)[rank::n]
@wrong("05.shard", "Do all ranks deal from the same order?")
def never_seeds(samples, epoch, seed, n, rank):
    return np.resize(np.random.permutation(samples), -(-samples // n) * n)[rank::n]
@wrong("05.shard", "Is it shuffled anew?")
def does_not_shuffle(samples, epoch, seed, n, rank):
    return np.resize(np.arange(samples), -(-samples // n) * n)[rank::n]
@wrong("05.shard", "your result has 0 samples, expected 1")
def same_neighbours_for_each_rank(samples, epoch, seed, n, rank):
    length = -(-samples // n)
    padded = np.resize(np.random.default_rng([seed, epoch]).permutation(samples), length * n)
    return padded[rank * length : (rank + 1) * length - 1]
@wrong("05.shard", "seed 1 in epoch 0 and seed 0 in epoch 100 give the same order")
def one_number_of_seed_and_epoch(samples, epoch, seed, n, rank):
    order = np.random.default_rng(seed * 100 + epoch).permutation(samples)
    return np.resize(order, -(-samples // n) * n)[rank::n]
@wrong("05.shard", "✗ The padding repeats the first samples of the epoch's order")
def pads_with_the_samples_of_lowest_number(samples, epoch, seed, n, rank):
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    padding = np.resize(np.arange(samples), -samples % n if samples else 0)
    return np.concatenate([order, padding])[rank::n]
@wrong("05.shard", "seed 0 in epoch 1 and seed 1000 in epoch 0 give the same order")
def one_number_of_epoch_and_seed(samples, epoch, seed, n, rank):
    order = np.random.default_rng(seed + epoch * 1000).permutation(samples)
    return np.resize(order, -(-samples // n) * n)[rank::n]
@wrong("05.shard", "Your result is right where n divides samples: which samples does the padding repeat?")
def pads_each_part_with_its_own(samples, epoch, seed, n, rank):
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    return np.resize(order[rank::n], -(-samples // n))
@wrong("05.weighted_mean", "✗ right: that is the mean of the ranks' means, and a rank without values counts as 0")
def mean_of_means(comm, values):
    mine = values.mean() if len(values) else 0.0
    return comm.allreduce(mine) / comm.size
@wrong(
    "05.weighted_mean",
    "✗ right: that is the mean of the ranks' means: a value on a rank with few values counts for more",
)
def mean_of_those_that_have_some(comm, values):
    mine = values.mean() if len(values) else 0.0
    return comm.allreduce(mine) / comm.allreduce(int(len(values) > 0))
@wrong("05.weighted_mean", "n = 2, lengths 1, 0")
def leaves_without_samples(comm, values):
    if len(values) == 0:
        return 0.0
    total, count = comm.allreduce(np.array([values.sum(), len(values)]))
    return float(total / count)
@wrong("05.weighted_mean", "✗ score")
def gathers_all_values(comm, values):
    return float(np.concatenate(comm.allgather(values)).mean())
@wrong("05.weighted_mean", "rank 1: your result is None")
def only_the_root_knows(comm, values):
    found = comm.reduce(np.array([values.sum(), len(values)]))
    return float(found[0] / found[1]) if comm.rank == 0 else None
@wrong("05.weighted_mean", "comm.allreduce adds with +, and two tuples become one longer tuple")
def adds_tuples(comm, values):
    total, count = comm.allreduce((values.sum(), len(values)))
    return float(total / count)
@wrong("05.shard", "seed 1 in epoch 0 and seed 0 in epoch 1234 give the same order")
def one_number_of_a_large_factor(samples, epoch, seed, n, rank):
    order = np.random.default_rng(seed * 1234 + epoch).permutation(samples)
    return np.resize(order, -(-samples // n) * n)[rank::n]
@wrong("05.shard", "it changes Python's own generator, which other code uses")
def seeds_python_itself(samples, epoch, seed, n, rank):
    random.seed(hash((seed, epoch)))
    order = list(range(samples))
    random.shuffle(order)
    return np.resize(np.array(order, int), -(-samples // n) * n)[rank::n]
@wrong("05.shard", "it changes torch's own generator, which other code uses")
def seeds_torch_itself(samples, epoch, seed, n, rank):
    torch.manual_seed(hash((seed, epoch)))
    return np.resize(torch.randperm(samples).numpy(), -(-samples // n) * n)[rank::n]
@wrong("05.shard", "seed 1 in epoch 0 and seed 0 in epoch 1000000 give the same order")
def one_number_of_millions(samples, epoch, seed, n, rank):
    order = np.random.default_rng(seed * 1_000_000 + epoch).permutation(samples)
    return np.resize(order, -(-samples // n) * n)[rank::n]
@wrong("05.shard", "seed 1 in epoch 0 and seed 0 in epoch 1000003 give the same order")
def one_number_for_torch(samples, epoch, seed, n, rank):
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(samples, generator=generator).numpy()
    return np.resize(order, -(-samples // n) * n)[rank::n]
