"""Wrong solutions of lesson 28, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

wrong = Answers()


@wrong("28.mfu", "forward alone was counted")
def forward_only(layers, width, tokens, vocabulary, per_second, peak):
    flop = layers * (24 * width**2 + 4 * width * tokens) + 2 * width * vocabulary
    return flop * per_second / peak
@wrong("28.mfu", "the products of attention were left out")
def six_n(layers, width, tokens, vocabulary, per_second, peak):
    return 6 * (12 * layers * width**2 + width * vocabulary) * per_second / peak
@wrong("28.mfu", "the embedding was counted as a product")
def both_ends(layers, width, tokens, vocabulary, per_second, peak):
    n = 12 * layers * width**2 + 2 * vocabulary * width
    return per_second * (6 * n + 12 * layers * tokens * width) / peak
@wrong("28.product_s", "both times were added up")
def one_after_the_other(rows, inner, columns, peak, bandwidth):
    flop, nbytes = 2 * rows * inner * columns, 2 * (rows * inner + inner * columns + rows * columns)
    return flop / nbytes, flop / peak + nbytes / bandwidth
@wrong("28.product_s", "the result was not counted")
def two_matrices(rows, inner, columns, peak, bandwidth):
    flop, nbytes = 2 * rows * inner * columns, 2 * inner * (rows + columns)
    return flop / nbytes, max(flop / peak, nbytes / bandwidth)
@wrong("28.product_s", "your result is one number")
def seconds_alone(rows, inner, columns, peak, bandwidth): return 2 * rows * inner * columns / peak
@wrong("28.lost", "the ranks' sums were compared")
def of_sums(comm, seconds):
    total = np.array(comm.allgather(float(np.sum(seconds))))
    return float(1 - total.mean() / total.max()), int(total.argmax())
@wrong("28.lost", "the waiting was divided by the time of computing")
def by_computing(comm, seconds):
    every = np.array(comm.allgather(seconds))
    waits = every.max(axis=0) - every
    return float(waits.sum() / every.sum()), int(np.bincount(every.argmax(axis=0)).argmax())
@wrong("28.lost", "the fastest rank was named")
def the_fastest(comm, seconds):
    every = np.array(comm.allgather(seconds))
    longest = every.max(axis=0)
    return float(1 - every.sum() / (comm.size * longest.sum())), int(np.bincount(every.argmin(axis=0)).argmax())
@wrong("28.bill", "the time of waiting was left out")
def busy_alone(gpus, hours, watts, busy, idle, overhead, price):
    kwh = gpus * hours * watts * busy * overhead / 1000
    return kwh, kwh * price
@wrong("28.bill", "watts were not made kilowatts")
def watt_hours(gpus, hours, watts, busy, idle, overhead, price):
    energy = gpus * hours * overhead * (busy * watts + idle - busy * idle)
    return energy, energy * price
@wrong("28.bill", "the overhead was left out")
def gpus_alone(gpus, hours, watts, busy, idle, overhead, price):
    kwh = gpus * hours * (busy * watts + (1 - busy) * idle) / 1000
    return kwh, kwh * price
