"""Right answers of lesson 28 that are unlike the official ones."""

from __future__ import annotations

from collections import Counter

import numpy as np


def mfu_by_parts(layers, width, tokens, vocabulary, per_second, peak):  # Part by part, forward times three.
    attention, mlp = 4 * 2 * width**2 + 2 * 2 * width * tokens, 2 * 2 * 4 * width**2
    return 3 * (layers * (attention + mlp) + 2 * width * vocabulary) * per_second / peak
def mfu_by_seconds(layers, width, tokens, vocabulary, per_second, peak):  # How long a token would take, at best.
    best_s = (72 * layers * width**2 + 6 * width * vocabulary + 12 * layers * width * tokens) / peak
    return best_s / (1 / per_second)
def mfu_factored(layers, width, tokens, vocabulary, per_second, peak):  # The common factor first.
    return 6 * width * (layers * (12 * width + 2 * tokens) + vocabulary) * per_second / peak
def mfu_in_a_loop(layers, width, tokens, vocabulary, per_second, peak):  # Layer after layer.
    flop = 6 * width * vocabulary
    for _ in range(layers):
        flop += 6 * 12 * width**2 + 12 * width * tokens
    return flop / peak * per_second
def product_by_ridge(rows, inner, columns, peak, bandwidth):  # Left or right of the ridge?
    flop = 2.0 * rows * inner * columns
    intensity = flop / 2 / (rows * inner + inner * columns + rows * columns)
    return intensity, flop / min(peak, intensity * bandwidth)
def product_by_reciprocals(rows, inner, columns, peak, bandwidth):  # The intensity is a harmonic mean.
    intensity = 1 / (1 / rows + 1 / inner + 1 / columns)
    flop = 2 * rows * inner * columns
    return intensity, max(flop / peak, flop / intensity / bandwidth)
def product_by_shapes(rows, inner, columns, peak, bandwidth):  # A list of the matrices.
    shapes = [(rows, inner), (inner, columns), (rows, columns)]
    nbytes = sum(2 * a * b for a, b in shapes)
    flop = rows * columns * (2 * inner)
    return [flop / nbytes, max([flop / peak, nbytes / bandwidth])]
def product_by_if(rows, inner, columns, peak, bandwidth):  # A branch.
    compute = 2 * rows * inner * columns / peak
    move = (rows * inner + inner * columns + rows * columns) * 2 / bandwidth
    return compute * peak / (move * bandwidth), compute if compute > move else move
def lost_by_steps(comm, seconds):  # One allgather for each step.
    waits = total = 0.0
    slowest = Counter()
    for mine in seconds:
        every = comm.allgather(float(mine))
        waits += sum(max(every) - each for each in every)
        total += max(every) * comm.size
        slowest[every.index(max(every))] += 1
    most = max(slowest.values())
    return waits / total, min(rank for rank, count in slowest.items() if count == most)
def lost_by_sums(comm, seconds):  # The maxima and the sum, as two reductions; then who was last.
    longest, total = comm.allreduce(seconds, op=np.maximum), comm.allreduce(float(np.sum(seconds)))
    first = comm.allreduce(np.where(seconds == longest, comm.rank, comm.size), op=np.minimum)
    return 1 - total / (comm.size * float(longest.sum())), int(np.bincount(first).argmax())
def lost_on_rank_0(comm, seconds):  # One rank computes, and tells the others.
    every = comm.gather(seconds)
    found = None
    if comm.rank == 0:
        every = np.vstack(every)
        share = np.mean(every.max(axis=0) - every) / np.mean(every.max(axis=0))
        found = float(share), int(np.argmax([(every.argmax(axis=0) == rank).sum() for rank in range(comm.size)]))
    return comm.bcast(found)
def lost_by_rows(comm, seconds):  # In Python's lists.
    steps = list(zip(*comm.allgather(list(map(float, seconds))), strict=True))
    last = [step.index(max(step)) for step in steps]
    share = 1 - sum(map(sum, steps)) / (comm.size * sum(map(max, steps)))
    return share, max(range(comm.size), key=lambda rank: (last.count(rank), -rank))
def bill_by_joules(gpus, hours, watts, busy, idle, overhead, price):  # In joules first.
    joules = gpus * hours * 3600 * (watts * busy + idle * (1 - busy)) * overhead
    return joules / 3.6e6, joules / 3.6e6 * price
def bill_by_hours(gpus, hours, watts, busy, idle, overhead, price):  # Busy hours and idle hours.
    working = gpus * hours * busy
    waiting = gpus * hours - working
    kwh = (working * watts + waiting * idle) / 1e3 * overhead
    return [kwh, price * kwh]
def bill_above_idle(gpus, hours, watts, busy, idle, overhead, price):  # Idle all the time, and more while it works.
    kwh = overhead * gpus * hours * (idle + busy * (watts - idle)) * 1e-3
    return kwh, kwh * price
def bill_for_one(gpus, hours, watts, busy, idle, overhead, price):  # One GPU's bill, so many times.
    one = hours * overhead * np.dot([busy, 1 - busy], [watts, idle]) / 1000
    return float(gpus * one), float(gpus * one * price)


RIGHT = {
    "28.mfu": [mfu_by_parts, mfu_by_seconds, mfu_factored, mfu_in_a_loop],
    "28.product_s": [product_by_ridge, product_by_reciprocals, product_by_shapes, product_by_if],
    "28.lost": [lost_by_steps, lost_by_sums, lost_on_rank_0, lost_by_rows],
    "28.bill": [bill_by_joules, bill_by_hours, bill_above_idle, bill_for_one],
}
