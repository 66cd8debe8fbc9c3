"""Right answers of lesson 14 that are unlike the official one."""

from __future__ import annotations

import numpy as np


def every_nth_sample(hvd, gradient, weights, x, y, batch, lr):
    """Each rank takes every n-th sample of a step; gradients leave together."""
    hvd.init()
    weights = [hvd.broadcast(w, 0, name=f"w{i}") for i, w in enumerate(weights)]
    for k in range(len(x) // batch):
        places = np.arange(k * batch, (k + 1) * batch)[hvd.rank() :: hvd.size()]
        handles = [hvd.allreduce_async(g, name=f"g{i}") for i, g in enumerate(gradient(weights, x[places], y[places]))]
        weights = [w - lr * hvd.synchronize(handle) for w, handle in zip(weights, handles, strict=True)]
    return hvd.local_rank(), weights
def one_flat_array(hvd, gradient, weights, x, y, batch, lr):  # All weights in one array, and all gradients in another.
    hvd.init()
    shapes, ends = [w.shape for w in weights], np.cumsum([w.size for w in weights])[:-1]
    def flat(parts): return np.concatenate([part.ravel() for part in parts])
    def parts_of(whole): return [part.reshape(shape) for part, shape in zip(np.split(whole, ends), shapes, strict=True)]
    whole, share = hvd.broadcast(flat(weights), root_rank=0, name="start"), batch // hvd.size()
    for first in range(hvd.rank() * share, len(x), batch):
        mine = gradient(parts_of(whole), x[first : first + share], y[first : first + share])
        whole = whole - lr * hvd.allreduce(flat(mine), name="step")
    return hvd.local_rank(), parts_of(whole)
def reshaped_first(hvd, gradient, weights, x, y, batch, lr):
    """The samples of all steps in one array, by step and rank; weights changed in copies."""
    hvd.init()
    share, rank = batch // hvd.size(), hvd.rank()
    weights = [np.array(hvd.broadcast(w, root_rank=0, name=f"weight {i}")) for i, w in enumerate(weights)]
    xs = x.reshape(-1, hvd.size(), share, *x.shape[1:])[:, rank]
    ys = y.reshape(-1, hvd.size(), share, *y.shape[1:])[:, rank]
    for step_x, step_y in zip(xs, ys, strict=True):
        for i, mine in enumerate(gradient(weights, step_x, step_y)):
            weights[i] -= lr * hvd.allreduce(mine, name=f"gradient {i}")
    return hvd.local_rank(), weights
def summed_and_divided(hvd, gradient, weights, x, y, batch, lr):
    """A while loop, sums in place of averages, and rank 0's weights by a sum with zeros."""
    hvd.init()
    n, me = hvd.size(), hvd.rank()
    weights = [hvd.allreduce(w if me == 0 else 0 * w, op=hvd.Sum, name=f"w{i}") for i, w in enumerate(weights)]
    begin = 0
    while begin < len(x):
        places = range(begin + me * batch // n, begin + (me + 1) * batch // n)
        gradients = gradient(weights, x[list(places)], y[list(places)])
        sums = [hvd.allreduce(one, op=hvd.Sum, name=f"g{begin}.{i}") for i, one in enumerate(gradients)]
        weights = list(map(lambda w, total: w - lr / n * total, weights, sums))
        begin += batch
    return [hvd.local_rank(), tuple(weights)]
RIGHT = {
    "14.six_steps": [every_nth_sample, one_flat_array, reshaped_first, summed_and_divided],
}
