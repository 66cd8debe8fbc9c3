"""Right answers of lesson 08 that are unlike the official ones."""

from __future__ import annotations

import statistics
from fractions import Fraction
from statistics import median

import numpy as np
import torch


def step_by_step(n, nbytes, alpha_s, beta_s):  # One step after the other.
    seconds = 0.0
    for _ in range(2):
        for _ in range(n - 1): seconds += alpha_s + beta_s * (nbytes / n)
    return seconds
def latency_and_bandwidth(n, nbytes, alpha_s, beta_s):  # The two parts apart, as numpy's numbers.
    return np.float64(2 * (n - 1) * alpha_s) + 2 * (1 - 1 / n) * nbytes * beta_s
def by_median(alone, together):  # With the standard library's median; a list.
    middle = median([one[0] / max(many) for one, many in zip(alone, together, strict=True)])
    return [middle, middle / len(together[-1])]
def by_numpy(alone, together):  # As arrays.
    ratios = np.array(alone).max(axis=1) / np.array(together).max(axis=1)
    return np.median(ratios), np.median(ratios) / np.array(together).shape[1]
def as_one_array(alone, together):  # Both numbers in one array.
    ratio = np.quantile([one[0] / max(many) for one, many in zip(alone, together, strict=True)], 0.5)
    return np.array([ratio, ratio / len(together[0])])
def solved_on_paper(n, nbytes, alpha_s, beta_s):  # 2(n - 1) and n / (n - 1) cancel.
    return 2 * n * alpha_s + 2 * beta_s * nbytes
def by_a_linear_equation(n, nbytes, alpha_s, beta_s):  # (1 - 1/n) G = C, solved by numpy.
    cost = 2 * (n - 1) * (alpha_s + beta_s * nbytes / n)
    return np.linalg.solve(np.array([[1 - 1 / n]]), np.array([cost]))[0]
def exactly(n, nbytes, alpha_s, beta_s):  # With fractions, rounded at the end only.
    message = Fraction(nbytes) / n
    return float((Fraction(alpha_s) + Fraction(beta_s) * message) * (n - 1) * 2)
def time_in_torch(n, nbytes, alpha_s, beta_s):  # One time for each step, and their sum as a tensor.
    steps = torch.full((2 * (n - 1),), nbytes / n, dtype=torch.float64)
    return (alpha_s + beta_s * steps).sum()
def one_round_after_the_other(alone, together):  # Efficiencies first; sorted, and the middle.
    n = len(together[0])
    efficiencies = sorted(one / (n * max(seconds)) for (one,), seconds in zip(alone, together, strict=True))
    many = len(efficiencies)
    middle = (efficiencies[(many - 1) // 2] + efficiencies[many // 2]) / 2
    return n * middle, middle
def by_tensors(alone, together):  # Ratios in a dict; torch's numbers.
    ratios = {i: np.divide(alone[i][0], np.max(together[i])) for i in range(len(alone))}
    speedup = statistics.median(ratios.values())
    return torch.tensor(speedup), torch.tensor(speedup / len(together[0]))
def by_bisection(n, nbytes, alpha_s, beta_s):  # Halves an interval, at whose ends one rank and n ranks are faster.
    cost = 2 * (n - 1) * (alpha_s + beta_s * nbytes / n)
    low, high = 0.0, 3 * cost + 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < middle / n + cost else (low, middle)
    return high
def by_repeating(n, nbytes, alpha_s, beta_s):
    """G = G/n + C, put into itself until it stays; the time of n ranks is one rank's."""
    computes = np.float64(0.0)
    while True:
        step = computes / n + 2 * (n - 1) * (alpha_s + beta_s * nbytes / n)
        if step <= computes * (1 + 1e-15): return step
        computes = step
RIGHT = {
    "08.ring_time": [step_by_step, latency_and_bandwidth, exactly, time_in_torch],
    "08.speedup": [by_median, by_numpy, as_one_array, one_round_after_the_other, by_tensors],
    "08.break_even": [solved_on_paper, by_a_linear_equation, by_bisection, by_repeating],
}
