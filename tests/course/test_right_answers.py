"""Right answers that are unlike the reference solution pass; so do some that a check once refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.course.judging import judge
from workbench.course.tasks import task

BEST = """
def best_threshold(sizes, ready, alpha, beta):
    return min(range(sum(sizes) + 1), key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))
"""
FROM_THE_END = """
def plan_buckets(sizes, threshold):
    buckets = []
    for size in reversed(sizes):
        if buckets and sum(buckets[0]) + size <= threshold:
            buckets[0].insert(0, size)
        else:
            buckets.insert(0, [size])
    return buckets
"""
ONE_TOO_MANY = """
def plan_buckets(sizes, threshold):
    return [[size] for size in sizes]
"""


def verdict(name: str, function: Callable[..., Any]) -> list[str]:
    """The names and words of the stages that are red."""
    return [f"{stage.name}: {stage.text}" for stage in judge.judge(task(name), function) if stage.passed is False]


def in_a_notebook(*cells: str) -> dict[str, Any]:
    """The names after some cells, as a kernel has them."""
    from workbench.course.tasks.algorithms.t07_fusion import finish_time

    names: dict[str, Any] = {"finish_time": finish_time}
    for cell in cells:
        exec(cell, names)
    return names


def test_the_best_threshold_of_ones_own_plan() -> None:
    """Who packs from the end has as few buckets as possible, and the best threshold of that plan is right."""
    names = in_a_notebook(FROM_THE_END, BEST)
    assert verdict("07.plan_buckets", names["plan_buckets"]) == []
    assert verdict("07.best_threshold", names["best_threshold"]) == []


def test_a_wrong_plan_does_not_make_a_threshold_right() -> None:
    """A plan that packs nothing makes every threshold the best: then the reference's plan counts."""
    names = in_a_notebook(ONE_TOO_MANY, BEST)
    assert verdict("07.plan_buckets", names["plan_buckets"])
    assert verdict("07.best_threshold", names["best_threshold"])


def shard_by_blocks(samples: Any, epoch: Any, seed: Any, n: Any, rank: Any) -> Any:
    """Not every n-th, but a piece; and the order by sorting random keys."""
    order = np.argsort(np.random.default_rng((epoch, seed, 3)).random(samples)).tolist()
    length = -(-samples // n)
    return [order[place % samples] for place in range(rank * length, (rank + 1) * length)]


def shard_by_hash(samples: Any, epoch: Any, seed: Any, n: Any, rank: Any) -> Any:
    """Without numpy: the order by a hash of seed, epoch and sample."""
    from hashlib import sha256

    order = sorted(range(samples), key=lambda one: sha256(f"{seed} {epoch} {one}".encode()).digest())
    while samples and len(order) % n:
        order.append(order[len(order) % samples if len(order) < 2 * samples else len(order) - samples])
    return order[rank::n]


def average_by_one_message(comm: Any, total: Any, count: Any) -> Any:
    """Sum and count travel together."""
    both = comm.allreduce(np.append(total, count))
    return both[:-1] / both[-1]


def reduce_scatter_on_copies(comm: Any, chunks: Any) -> Any:
    """The last chunk received is the one that goes on; nothing of the input is written."""
    n, rank = comm.size, comm.rank
    passed = chunks[rank]
    for step in range(n - 1):
        passed = chunks[(rank - step - 1) % n] + comm.sendrecv(passed, dest=(rank + 1) % n, source=(rank - 1) % n)
    return passed


def epoch_by_asking_all(hvd: Any, w: Any, batches: Any, lr: Any) -> Any:
    """Everybody's number is gathered."""
    steps = int(hvd.allgather(np.array([len(batches)]), name="counts").min())
    for x, y in batches[:steps]:
        w = w - lr * hvd.allreduce(2 * x.T @ (x @ w - y) / len(y), name="gradient")
    return w, steps


def local_sgd_in_rounds(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    """A loop over rounds, and in it one over steps; the average by way of rank 0."""
    for first in range(0, len(batches), every):
        for x, y in batches[first : first + every]:
            w = w + lr / len(y) * (y - x @ w) @ x
        total = comm.reduce(w)
        w = comm.bcast(total / comm.size if comm.rank == 0 else None)
    return w


def outer_step_by_the_average(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    """The weights are averaged, and Nesterov's step is written out: two momenta."""
    outer = start - comm.allreduce(w) / comm.size
    new = outer + momentum * velocity
    return [start - lr * (1 + momentum) * outer - lr * momentum**2 * velocity, new]


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


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("03.reduce_scatter", reduce_scatter_on_copies),
        ("04.average_gradients", average_by_one_message),
        ("05.shard", shard_by_blocks),
        ("05.shard", shard_by_hash),
        ("11.epoch", epoch_by_asking_all),
        ("19.local_sgd", local_sgd_in_rounds),
        ("19.outer_step", outer_step_by_the_average),
        ("19.powersgd", powersgd_by_gram_schmidt),
        ("19.powersgd", powersgd_by_svd),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_another_way_is_right(name: str, function: Callable[..., Any]) -> None:
    """Every stage of the verdict is green, or was left out for want of real ranks."""
    assert verdict(name, function) == []
