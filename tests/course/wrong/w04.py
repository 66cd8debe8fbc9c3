"""Wrong solutions of lesson 04, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

wrong = Answers()


@wrong(
    "04.average_gradients",
    "✗ right: that is the mean of the ranks' means: a sample on a rank with few samples counts for more",
)
def average_of_averages(comm, total, count): return comm.allreduce(total / max(count, 1)) / comm.size
@wrong("04.average_gradients", "your result is nan, expected 1.0. Something was divided by 0")
def nothing_divided_by_nothing(comm, total, count):
    with np.errstate(invalid="ignore"): return comm.allreduce(total / count * count) / comm.allreduce(count)
@wrong("04.average_gradients", "✗ right: the sum was divided by the number of ranks, not by that of all samples")
def divides_by_the_ranks(comm, total, count): return comm.allreduce(total) / comm.size
@wrong("04.average_gradients", "a sample of rank 0 counts 1/4, one of rank 1 counts 1/4; each of the 8 should")
def divides_by_its_own_count(comm, total, count): return comm.allreduce(total) / count
@wrong("04.average_gradients", "✗ no deadlock: n = 2, counts 5, 0")
def leaves_when_it_has_none(comm, total, count):
    if count == 0: return total
    return comm.allreduce(total) / comm.allreduce(count)
@wrong("04.average_gradients", "✗ right: n = 2, counts 4, 4: rank 1: your result is None")
def tells_rank_0_only(comm, total, count):
    total, count = comm.reduce(total), comm.reduce(count)
    return total / count if comm.rank == 0 else total
@wrong("04.average_gradients", "bytes from the busiest rank; the limit")
def gathers_all_gradients(comm, total, count): return sum(comm.allgather(total)) / sum(comm.allgather(count))
@wrong("04.average_gradients", "n = 1, counts 3: rank 0 changes its own total, which belongs to the caller")
def adds_in_place(comm, total, count):
    total *= 1 / comm.allreduce(count)
    return comm.allreduce(total)
@wrong("04.average_gradients", "✗ right: n = 1, counts 3: rank 0: your result has shape (), expected (6,)")
def one_number_for_all(comm, total, count): return comm.allreduce(total.sum()) / comm.allreduce(count)
@wrong("04.sgd_step", "✗ right: that is the mean gradient, and not the weights after the step")
def returns_the_gradient(comm, w, x, y, lr): return comm.allreduce(x.T @ (x @ w - y)) / comm.allreduce(len(y))
@wrong("04.sgd_step", "✗ right: each rank uses its own samples only")
def own_samples_only(comm, w, x, y, lr): return w - lr * x.T @ (x @ w - y) / max(len(y), 1)
@wrong("04.sgd_step", "n = 1, samples 4: rank 0 changes its own w, which belongs to the caller")
def changes_the_weights_in_place(comm, w, x, y, lr):
    w -= lr * comm.allreduce(x.T @ (x @ w - y)) / comm.allreduce(len(y))
    return w
@wrong("04.sgd_step", "ranks with other bits than rank 0 (sums in another order); there must be none")
def own_gradient_first(comm, w, x, y, lr):
    total = passed = x.T @ (x @ w - y)
    for _ in range(comm.size - 1):
        passed = comm.sendrecv(passed, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
        total = total + passed
    return w - lr * total / comm.allreduce(len(y))
@wrong("04.sgd_step", "✗ no deadlock: n = 2, samples 0, 2")
def steps_without_samples(comm, w, x, y, lr):
    if len(y) == 0: return w
    return w - lr * comm.allreduce(x.T @ (x @ w - y)) / comm.allreduce(len(y))
@wrong("04.stale", "each number is one too large: a gradient's own change comes after it")
def one_too_many(order):
    got = dict.fromkeys(order, -1)
    found = []
    for update, worker in enumerate(order):
        found.append(update - got[worker])
        got[worker] = update
    return [one if one > 1 else 1 for one in found]
@wrong("04.stale", "a worker's own gradient is counted, too")
def counts_its_own(order):
    got = dict.fromkeys(order, 0)
    found = []
    for update, worker in enumerate(order):
        found.append(update - got[worker])
        got[worker] = update
    return found
@wrong(
    "04.stale", "is never stale: order []: your result is -1. A list is asked for, with one number for each gradient"
)
def the_mean(order): return len(set(order)) - 1
@wrong("04.stale", "a worker's number is used as an index of a list, but it may be any number; IndexError")
def workers_are_counted_from_0(order):
    got = [0] * len(order)
    found = []
    for update, worker in enumerate(order):
        found.append(update - got[worker])
        got[worker] = update + 1
    return found
