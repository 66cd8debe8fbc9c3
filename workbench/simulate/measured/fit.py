"""The constants of a link, from the times of reductions of several sizes, and how sure they are.

A reduction takes ``steps · latency_s + bytes · per_byte_s`` (see :mod:`workbench.simulate.schedule`): two unknowns, and
a line through the medians. What is paid besides (the announcement) is known, and given. Relative errors count, and
those of large arrays more, by their bytes: a training's time is mostly theirs. The interval is that of the bootstrap:
the times of each size are drawn anew 400 times, and 95 % of the lines lie within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.errors import WorkbenchError
from workbench.simulate.machines import Wire

Costs = NDArray[np.float64]
_DRAWN = 400
_FEWEST_SIZES = 3
DOUBT = 0.25


class NoisyError(WorkbenchError):
    """The times differ too much from one another for constants to be derived."""


@dataclass(frozen=True)
class Constant:
    """A constant, and the interval in which it lies with a probability of 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} … {self.high:.3g})"


@dataclass(frozen=True)
class Fit:
    """What a link's constants are.

    Args:
        latency_s: of one step.
        per_byte_s: of one byte.
        doubt: half of the interval of the time of the largest array, by that time.
    """

    latency_s: Constant
    per_byte_s: Constant
    doubt: float

    @property
    def wire(self) -> Wire:
        return Wire(self.latency_s.value, self.per_byte_s.value)

    def __str__(self) -> str:
        mbyte_s = [
            1e-6 / max(each, 1e-15) for each in (self.per_byte_s.value, self.per_byte_s.high, self.per_byte_s.low)
        ]
        latency = [1e6 * each for each in (self.latency_s.value, self.latency_s.low, self.latency_s.high)]
        return (
            f"latency {latency[0]:.0f} µs ({latency[1]:.0f} to {latency[2]:.0f}), "
            f"{mbyte_s[0]:,.0f} MB/s ({mbyte_s[1]:,.0f} to {mbyte_s[2]:,.0f})"
        )


def fit(
    what: str,
    steps: ArrayLike,
    sent: ArrayLike,
    seconds: Sequence[Sequence[float]],
    besides: ArrayLike = 0.0,
    doubt: float = DOUBT,
) -> Fit:
    """Fit both constants.

    Args:
        what: the link, for the error's text.
        steps, sent: of each size, how often a latency is paid, and how many bytes pass.
        seconds: of each size, the times of its repetitions.
        doubt: how much of it is allowed, see :class:`Fit`.
        besides: what of each size's time is none of the link's.

    Raises:
        ValueError: fewer than three sizes, a size without a time, or a time that is no positive number.
        NoisyError: the doubt is larger.

    Example:
        >>> found = fit("eth0", [2, 2, 2], [1e3, 1e6, 1e7], [[0.002001], [0.003], [0.012]])
        >>> print(f"{found.latency_s.value:.4f} {found.per_byte_s.value:.2g}")
        0.0010 1e-09
    """
    times = [np.asarray(each, np.float64) for each in seconds]
    if len(times) < _FEWEST_SIZES:
        raise ValueError(f"{what}: times of {len(times)} sizes were given; {_FEWEST_SIZES} at least are needed.")
    if wrong := [each.tolist() for each in times if not len(each) or not np.all(np.isfinite(each) & (each > 0))]:
        raise ValueError(
            f"{what}: the times {wrong[0]} were given for one size; positive numbers of seconds are needed."
        )
    costs, rest = np.stack([np.asarray(steps, np.float64), np.asarray(sent, np.float64)], axis=1), np.asarray(besides)
    chance, medians = np.random.default_rng(0), np.array([np.median(each) for each in times])
    again = [np.array([np.median(chance.choice(each, len(each))) for each in times]) for _ in range(_DRAWN)]
    drawn, best = np.stack([_line(costs, each, rest) for each in again]), _line(costs, medians, rest)
    low, high = np.percentile(drawn, (2.5, 97.5), axis=0)
    largest = int(np.argmax(costs[:, 1]))
    spread = np.percentile(drawn @ costs[largest], (2.5, 97.5))
    found = float((spread[1] - spread[0]) / 2 / medians[largest])
    latency, per_byte = (Constant(*map(float, each)) for each in zip(best, low, high, strict=True))
    if found > doubt:
        raise NoisyError(
            f"{what}: the times differ so much that a reduction of the largest array is only known to within "
            f"±{found:.0%} (allowed: ±{doubt:.0%}). Something else keeps the machine or the link busy. End it, or "
            f"measure for longer: workbench.measure(seconds=…). doubt=… allows more. "
            f"What was found: {Fit(latency, per_byte, found)}."
        )
    return Fit(latency, per_byte, found)


def _line(costs: Costs, seconds: Costs, besides: Costs) -> Costs:
    """Weighted least squares of the relative errors; both constants are 0 at least."""
    weights = costs[:, 1] / costs[:, 1].max() / seconds
    scaled, wanted = costs * weights[:, None], (seconds - besides) * weights
    found: Costs = np.linalg.lstsq(scaled, wanted, rcond=None)[0]
    if np.all(found >= 0):
        return found
    column = int(np.argmax(found))  # the other one is 0
    alone = np.zeros(2)
    alone[column] = max(0.0, scaled[:, column] @ wanted / (scaled[:, column] @ scaled[:, column]))
    return alone
