"""Bayesian optimisation: where to measure next, and which of the measured points is the best.

A Gaussian process says for each point what is expected there and how sure that is. The next point is the one with the
largest *expected improvement* over the best so far. scikit-learn computes the process; it is loaded by :func:`load`,
so only rank 0 of a job that asks for autotune needs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.common.extras import cure
from workbench.errors import LaunchError

Points = NDArray[np.float64]
"""One point a row, each coordinate between 0 and 1."""
_LENGTHS = (0.15, 0.3, 0.6, 1.2)  # over which scores are alike; the likeliest is taken
_CANDIDATES = 512


def load() -> None:
    """Import scikit-learn, which takes a second.

    Raises:
        LaunchError: it is not installed.
    """
    try:
        import sklearn.gaussian_process  # noqa: F401
    except ImportError as error:
        raise LaunchError(
            f"WORKBENCH_AUTOTUNE=1 needs scikit-learn, which cannot be imported on rank 0: {error}. Install it by "
            f"{cure('autotune')}, or unset WORKBENCH_AUTOTUNE and HOROVOD_AUTOTUNE."
        ) from None


def expected(points: Sequence[Sequence[float]], scores: Sequence[float], noise: float, at: Points) -> tuple[Any, Any]:
    """What the process expects ``at`` other points, and its standard deviation there.

    Args:
        points, scores: what was measured.
        noise: standard deviation of a measurement, where that of all scores is 1.
        at: where it is asked.

    Example:
        >>> mean, deviation = expected([[0.0], [1.0]], [10.0, 20.0], 0.01, np.array([[0.0], [1.0], [0.5]]))
        >>> mean.round().tolist(), bool(deviation[2] > deviation[0])
        ([10.0, 20.0, 15.0], True)
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    y = np.asarray(scores, np.float64)
    middle, scale = y.mean(), y.std() or 1.0
    found = []
    for length in _LENGTHS:
        process = GaussianProcessRegressor(Matern(length, nu=2.5), alpha=noise**2 + 1e-8, optimizer=None)
        process.fit(np.asarray(points, np.float64), (y - middle) / scale)
        found.append(process)
    likeliest = max(found, key=lambda one: one.log_marginal_likelihood_value_)
    mean, deviation = likeliest.predict(at, return_std=True)
    return mean * scale + middle, deviation * scale


def suggest(points: Sequence[Sequence[float]], scores: Sequence[float], noise: float, seed: int = 0) -> list[float]:
    """The point with the largest expected improvement, of some at random and some beside the best.

    Args:
        points, scores: what was measured.
        noise: see :func:`expected`.
        seed: of chance; the same gives the same point.
    """
    chance = np.random.default_rng([seed, len(points)])
    dimensions = len(points[0])
    best = np.asarray(points[best_of(points, scores, noise)])
    beside = np.clip(best + 0.08 * chance.standard_normal((_CANDIDATES // 4, dimensions)), 0, 1)
    candidates = np.vstack([chance.random((_CANDIDATES, dimensions)), beside])
    mean, deviation = expected(points, scores, noise, candidates)
    goal = expected(points, scores, noise, best[None, :])[0][0]
    gain = improvement(mean - goal, deviation)
    return [float(x) for x in candidates[int(np.argmax(gain))]]


def improvement(above: Any, deviation: Any) -> Any:
    """By how much a normally distributed score is expected to exceed the goal; 0 where it does not.

    Args:
        above: its mean, minus the goal.
        deviation: its standard deviation.

    Example:
        >>> improvement(np.array([0.0, 2.0, -9.0]), np.array([1.0, 0.1, 1.0])).round(2).tolist()
        [0.4, 2.0, 0.0]
    """
    deviation = np.maximum(deviation, 1e-12)
    z = above / deviation
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in np.ravel(z)]).reshape(np.shape(z))
    return above * below + deviation * density


def best_of(points: Sequence[Sequence[float]], scores: Sequence[float], noise: float) -> int:
    """Which measured point is expected to be the best. With noise, the highest score may be mere luck."""
    return int(np.argmax(expected(points, scores, noise, np.asarray(points, np.float64))[0]))
