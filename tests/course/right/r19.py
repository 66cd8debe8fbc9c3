"""Right answers of lesson 19 that are unlike the official ones."""

from __future__ import annotations

from typing import Any

import numpy as np


def local_sgd_in_rounds(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    """A loop over rounds, and in it one over steps; the average by way of rank 0."""
    for first in range(0, len(batches), every):
        for x, y in batches[first : first + every]:
            w = w + lr / len(y) * (y - x @ w) @ x
        total = comm.reduce(w)
        w = comm.bcast(total / comm.size if comm.rank == 0 else None)
    return w


def local_sgd_by_changes(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    """What travels is how far a rank has come since the last average."""
    change, left = np.zeros_like(w), len(batches)
    for x, y in batches:
        at = w + change
        change, left = change - lr * x.T @ (x @ at - y) / len(y), left - 1
        if left == 0 or (len(batches) - left) % every == 0:
            w, change = w + comm.allreduce(change) / comm.size, np.zeros_like(w)
    return w


def outer_step_by_the_average(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    """The weights are averaged, and Nesterov's step is written out: two momenta."""
    outer = start - comm.allreduce(w) / comm.size
    new = outer + momentum * velocity
    return [start - lr * (1 + momentum) * outer - lr * momentum**2 * velocity, new]


def outer_step_on_rank_0(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    """Rank 0 gathers, steps, and tells the others."""
    found = comm.gather(w)
    if comm.rank == 0:
        velocity = momentum * velocity + np.mean([start - one for one in found], axis=0)
        outer = np.mean([start - one for one in found], axis=0) + momentum * velocity
        found = (start - lr * outer, velocity)
    return comm.bcast(found)


def powersgd_by_gram_schmidt(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    """The sum has the same columns as the average; one column after the other is made orthonormal."""
    p = comm.allreduce((error + gradient) @ q)
    for column in range(p.shape[1]):
        for before in range(column):
            p[:, column] -= (p[:, before] @ p[:, column]) * p[:, before]
        p[:, column] /= np.linalg.norm(p[:, column])
    shares = comm.allreduce(p.T @ (error + gradient)) / comm.size
    return p @ shares, (np.eye(len(p)) - p @ p.T) @ (error + gradient)


def powersgd_by_svd(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    """Another orthonormal basis of the same columns."""
    sent = gradient + error
    p = np.linalg.svd(comm.allreduce(sent @ q), full_matrices=False)[0]
    mine = p.T @ sent
    return p @ comm.allreduce(mine / comm.size), sent - p @ mine


RIGHT = {
    "19.local_sgd": [local_sgd_in_rounds, local_sgd_by_changes],
    "19.outer_step": [outer_step_by_the_average, outer_step_on_rank_0],
    "19.powersgd": [powersgd_by_gram_schmidt, powersgd_by_svd],
}
