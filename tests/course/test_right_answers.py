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


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("03.reduce_scatter", reduce_scatter_on_copies),
        ("04.average_gradients", average_by_one_message),
        ("05.shard", shard_by_blocks),
        ("05.shard", shard_by_hash),
        ("11.epoch", epoch_by_asking_all),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_another_way_is_right(name: str, function: Callable[..., Any]) -> None:
    """Every stage of the verdict is green, or was left out for want of real ranks."""
    assert verdict(name, function) == []


def by_elements(sizes: Any, n: Any) -> Any:
    """Owners, element by element."""
    element = [(number, i) for number, size in enumerate(sizes) for i in range(size)]
    found = []
    for chunk in np.array_split(np.arange(len(element)), n):
        parts: dict[int, list[int]] = {}
        for at in chunk:
            parts.setdefault(element[at][0], []).append(element[at][1])
        found.append([(number, mine[0], mine[-1] + 1) for number, mine in parts.items()])
    return found


def pairwise_step(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    """Each chunk straight to its owner, as pairwise exchange does it: also n - 1 messages of one chunk."""
    n, rank = comm.size, comm.rank
    chunks = np.array_split(grad, n)
    total = chunks[rank].copy()
    for step in range(1, n):
        total = total + comm.sendrecv(chunks[(rank + step) % n], dest=(rank + step) % n, source=(rank - step) % n)
    return shard - lr * total / n


def straight_from_each(comm: Any, shards: Any, x: Any) -> Any:
    """Each rank's rows come from that rank itself, by messages that do not wait."""
    n, rank = comm.size, comm.rank
    for rows in shards:
        sent = [comm.isend(rows, dest=(rank + step) % n) for step in range(1, n)]
        came = {(rank - step) % n: comm.recv(source=(rank - step) % n) for step in range(1, n)}
        for each in sent:
            each.wait()
        came[rank] = rows
        comm.compute(0.001)
        x = np.tanh(np.vstack([came[each] for each in range(n)]) @ x)
    return x


def to_the_left(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    """The ring of the reduce-scatter, the other way round."""
    n, rank = comm.size, comm.rank
    chunks = [chunk.copy() for chunk in np.array_split(grad, n)]
    for step in range(1, n):
        chunks[(rank + step + 1) % n] += comm.sendrecv(
            chunks[(rank + step) % n], dest=(rank - 1) % n, source=(rank + 1) % n
        )
    return shard - chunks[rank] * (lr / n)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("18.owners", by_elements),
        ("18.reduce_scatter_step", pairwise_step),
        ("18.reduce_scatter_step", to_the_left),
        ("18.gather_parameters", straight_from_each),
    ],
)
def test_sharding_further(name: str, function: Callable[..., Any]) -> None:
    """Other ways to the same parts, for the same bytes."""
    assert verdict(name, function) == []
