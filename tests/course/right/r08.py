"""Right answers of lesson 08 that are unlike the official ones."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np


def step_by_step(n: Any, nbytes: Any, alpha_s: Any, beta_s: Any) -> Any:
    """One step after the other."""
    seconds = 0.0
    for _ in range(2):
        for _ in range(n - 1):
            seconds += alpha_s + beta_s * (nbytes / n)
    return seconds


def latency_and_bandwidth(n: Any, nbytes: Any, alpha_s: Any, beta_s: Any) -> Any:
    """The two parts apart, as numpy's numbers."""
    return np.float64(2 * (n - 1) * alpha_s) + 2 * (1 - 1 / n) * nbytes * beta_s


def by_median(alone: Any, together: Any) -> Any:
    """With the standard library's median; a list."""
    middle = median([one[0] / max(many) for one, many in zip(alone, together, strict=True)])
    return [middle, middle / len(together[-1])]


def by_numpy(alone: Any, together: Any) -> Any:
    """As arrays."""
    ratios = np.array(alone).max(axis=1) / np.array(together).max(axis=1)
    return np.median(ratios), np.median(ratios) / np.array(together).shape[1]


def as_one_array(alone: Any, together: Any) -> Any:
    """Both numbers in one array."""
    ratio = np.quantile([one[0] / max(many) for one, many in zip(alone, together, strict=True)], 0.5)
    return np.array([ratio, ratio / len(together[0])])


def solved_on_paper(n: Any, nbytes: Any, alpha_s: Any, beta_s: Any) -> Any:
    """2(n - 1) and n / (n - 1) cancel."""
    return 2 * n * alpha_s + 2 * beta_s * nbytes


def by_a_linear_equation(n: Any, nbytes: Any, alpha_s: Any, beta_s: Any) -> Any:
    """(1 - 1/n) G = C, solved by numpy."""
    cost = 2 * (n - 1) * (alpha_s + beta_s * nbytes / n)
    return np.linalg.solve(np.array([[1 - 1 / n]]), np.array([cost]))[0]


RIGHT = {
    "08.ring_time": [step_by_step, latency_and_bandwidth],
    "08.speedup": [by_median, by_numpy, as_one_array],
    "08.break_even": [solved_on_paper, by_a_linear_equation],
}
