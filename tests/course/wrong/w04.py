"""Wrong solutions of lesson 04, each with what the check must say."""

from __future__ import annotations

from typing import Any

import numpy as np


def average_of_averages(comm: Any, total: Any, count: Any) -> Any:
    return comm.allreduce(total / max(count, 1)) / comm.size


def nothing_divided_by_nothing(comm: Any, total: Any, count: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return comm.allreduce(total / count * count) / comm.allreduce(count)


def divides_by_the_ranks(comm: Any, total: Any, count: Any) -> Any:
    return comm.allreduce(total) / comm.size


def divides_by_its_own_count(comm: Any, total: Any, count: Any) -> Any:
    return comm.allreduce(total) / count


def assumes_equal_counts(comm: Any, total: Any, count: Any) -> Any:
    return comm.allreduce(total) / (comm.size * count)


def leaves_when_it_has_none(comm: Any, total: Any, count: Any) -> Any:
    if count == 0:
        return total
    return comm.allreduce(total) / comm.allreduce(count)


def tells_rank_0_only(comm: Any, total: Any, count: Any) -> Any:
    total, count = comm.reduce(total), comm.reduce(count)
    return total / count if comm.rank == 0 else total


def gathers_all_gradients(comm: Any, total: Any, count: Any) -> Any:
    return sum(comm.allgather(total)) / sum(comm.allgather(count))


def adds_in_place(comm: Any, total: Any, count: Any) -> Any:
    total *= 1 / comm.allreduce(count)
    return comm.allreduce(total)


def one_number_for_all(comm: Any, total: Any, count: Any) -> Any:
    return comm.allreduce(total.sum()) / comm.allreduce(count)


def returns_the_gradient(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    return comm.allreduce(x.T @ (x @ w - y)) / comm.allreduce(len(y))


def own_samples_only(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    return w - lr * x.T @ (x @ w - y) / max(len(y), 1)


def adds_instead_of_averaging(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    return w - lr * comm.allreduce(x.T @ (x @ w - y))


def averages_the_averages(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    return w - lr * comm.allreduce(x.T @ (x @ w - y) / max(len(y), 1)) / comm.size


def averages_the_weights(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    return comm.allreduce(w - lr * x.T @ (x @ w - y) / max(len(y), 1)) / comm.size


def forgets_the_half(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    return w - lr * 2 * comm.allreduce(x.T @ (x @ w - y)) / comm.allreduce(len(y))


def forgets_the_rate(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    return w - comm.allreduce(x.T @ (x @ w - y)) / comm.allreduce(len(y))


def changes_the_weights_in_place(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    w -= lr * comm.allreduce(x.T @ (x @ w - y)) / comm.allreduce(len(y))
    return w


def uphill(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    return w + lr * comm.allreduce(x.T @ (x @ w - y)) / comm.allreduce(len(y))


def own_gradient_first(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    total = passed = x.T @ (x @ w - y)
    for _ in range(comm.size - 1):
        passed = comm.sendrecv(passed, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
        total = total + passed
    return w - lr * total / comm.allreduce(len(y))


def steps_without_samples(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    if len(y) == 0:
        return w
    return w - lr * comm.allreduce(x.T @ (x @ w - y)) / comm.allreduce(len(y))


def one_too_many(order: Any) -> Any:
    got = dict.fromkeys(order, -1)
    found = []
    for update, worker in enumerate(order):
        found.append(update - got[worker])
        got[worker] = update
    return [one if one > 1 else 1 for one in found]


def counts_its_own(order: Any) -> Any:
    got = dict.fromkeys(order, 0)
    found = []
    for update, worker in enumerate(order):
        found.append(update - got[worker])
        got[worker] = update
    return found


def all_the_others(order: Any) -> Any:
    return [len(set(order)) - 1] * len(order)


def fresh_at_first(order: Any) -> Any:
    got: dict[int, int] = {}
    found = []
    for update, worker in enumerate(order):
        found.append(update - got.get(worker, update))
        got[worker] = update + 1
    return found


def different_workers_between(order: Any) -> Any:
    found = []
    for i, worker in enumerate(order):
        before = [j for j in range(i) if order[j] == worker]
        found.append(len(set(order[before[-1] + 1 if before else 0 : i])))
    return found


def the_mean(order: Any) -> Any:
    return len(set(order)) - 1


def workers_are_counted_from_0(order: Any) -> Any:
    got = [0] * len(order)
    found = []
    for update, worker in enumerate(order):
        found.append(update - got[worker])
        got[worker] = update + 1
    return found


WRONG = {
    "04.average_gradients": [
        (
            average_of_averages,
            "✗ right: that is the mean of the ranks' means: a sample on a rank with few samples counts for more",
        ),
        (nothing_divided_by_nothing, "your result is nan, expected 1.0. Something was divided by 0"),
        (divides_by_the_ranks, "✗ right: the sum was divided by the number of ranks, not by that of all samples"),
        (divides_by_its_own_count, "a sample of rank 0 counts 1/4, one of rank 1 counts 1/4; each of the 8 should"),
        (assumes_equal_counts, "a sample of rank 0 counts 1/2, one of rank 1 counts 1/2; each of the 4 should"),
        (leaves_when_it_has_none, "✗ no deadlock: n = 2, counts 5, 0"),
        (tells_rank_0_only, "✗ right: n = 2, counts 4, 4: rank 1: your result is None"),
        (adds_in_place, "n = 1, counts 3: rank 0 changes its own total, which belongs to the caller"),
        (one_number_for_all, "✗ right: n = 1, counts 3: rank 0: your result has shape (), expected (6,)"),
        (gathers_all_gradients, "bytes from the busiest rank; the limit"),
    ],
    "04.sgd_step": [
        (own_samples_only, "✗ right: each rank uses its own samples only"),
        (
            adds_instead_of_averaging,
            "✗ right: the sum of all gradients was not divided by the number of samples: the loss is their mean",
        ),
        (
            averages_the_averages,
            "✗ right: that is the mean of the ranks' means: a sample on a rank with few samples counts for more",
        ),
        (
            averages_the_weights,
            "✗ right: that is the mean of the ranks' means: a sample on a rank with few samples counts for more",
        ),
        (
            forgets_the_half,
            "✗ right: the gradient was taken twice: the half in the loss takes the 2 of the derivative away",
        ),
        (forgets_the_rate, "✗ right: the learning rate is missing: the step is lr times the mean gradient"),
        (changes_the_weights_in_place, "n = 1, samples 4: rank 0 changes its own w, which belongs to the caller"),
        (returns_the_gradient, "✗ right: that is the mean gradient, and not the weights after the step"),
        (uphill, "✗ right: the step goes up the gradient; w - lr * gradient goes down"),
        (own_gradient_first, "ranks with other bits than rank 0 (sums in another order); there must be none"),
        (steps_without_samples, "✗ no deadlock: n = 2, samples 0, 2"),
    ],
    "04.stale": [
        (
            the_mean,
            "is never stale: order []: your result is -1. A list is asked for, with one number for each gradient",
        ),
        (one_too_many, "each number is one too large: a gradient's own change comes after it"),
        (counts_its_own, "a worker's own gradient is counted, too"),
        (all_the_others, "that is the number of other workers"),
        (fresh_at_first, "a worker's first gradient may be stale as well"),
        (different_workers_between, "each change counts, also several of one worker"),
        (
            workers_are_counted_from_0,
            "a worker's number is used as an index of a list, but it may be any number; IndexError",
        ),
    ],
}
