"""Right answers of lesson 09 that are unlike the official ones."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import torch


def by_interpolation(step, base, n, steps_per_epoch, warmup_epochs, drops):  # The warm-up as a line between two points.
    end = warmup_epochs * steps_per_epoch
    rate = np.interp(step, [0, end], [base, n * base]) if end else n * base
    for epoch in drops: rate = rate / 10 if step >= epoch * steps_per_epoch else rate
    return rate
def by_epochs(step, base, n, steps_per_epoch, warmup_epochs, drops):  # In epochs, with a part for the steps in them.
    epoch = step / steps_per_epoch
    if epoch < warmup_epochs: return base + (n * base - base) * epoch / warmup_epochs
    return n * base * 10.0 ** -len([one for one in drops if step // steps_per_epoch >= one])
def by_numpy(global_batch, n):  # np.array_split deals as it should.
    sizes = [len(part) for part in np.array_split(np.arange(global_batch), n)]
    return sizes, list(np.array(sizes) / sum(sizes))
def one_by_one(global_batch, n):  # Samples are dealt out like cards.
    sizes = [0] * n
    for sample in range(global_batch): sizes[sample % n] += 1
    return tuple(sizes), tuple(size / global_batch for size in sizes)
def as_an_array(step, base, n, steps_per_epoch, warmup_epochs, drops):  # The rate as numpy's 0-d array.
    warmup = warmup_epochs * steps_per_epoch
    rate = base * (1 + (n - 1) * step / warmup) if step < warmup else base * n
    return np.array(rate * 0.1 ** sum(step >= epoch * steps_per_epoch for epoch in drops))
def as_a_tensor(step, base, n, steps_per_epoch, warmup_epochs, drops):  # The rate as torch's scalar.
    rate = as_an_array(step, base, n, steps_per_epoch, warmup_epochs, drops)
    return torch.tensor(float(rate), dtype=torch.float64)
def as_arrays(global_batch, n):  # Both results as arrays.
    sizes = np.full(n, global_batch // n) + (np.arange(n) < global_batch % n)
    return sizes, sizes / global_batch
def by_rounding_bounds(global_batch, n):  # Differences of rounded up bounds, and weights as fractions.
    bounds = [-(-global_batch * rank // n) for rank in range(n + 1)]
    sizes = sorted((end - begin for begin, end in itertools.pairwise(bounds)), reverse=True)
    return sizes, [Fraction(size, global_batch) for size in sizes]
def from_what_is_left(global_batch, n):  # Each rank takes its share of what the others have left.
    sizes: list[int] = []
    for ranks in range(n, 0, -1): sizes += [(global_batch - sum(sizes) + ranks - 1) // ranks]
    return [sizes, [1 / n + (size - global_batch / n) / global_batch for size in sizes]]
RIGHT = {
    "09.learning_rate": [
        by_interpolation,
        by_epochs,
        as_an_array,
        as_a_tensor,
    ],
    "09.local_batches": [by_numpy, one_by_one, as_arrays, by_rounding_bounds, from_what_is_left],
}
