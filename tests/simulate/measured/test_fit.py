"""Constants of a link from times: known ones are found again, and noise is said."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.simulate.measured.fit import NoisyError, fit

SIZES = [2.0**16, 2.0**18, 2.0**20, 2.0**22, 2.0**24]


def times(latency_s: float, per_byte_s: float, noise: float, besides: float = 0.0, seed: int = 0) -> list[list[float]]:
    """Of 30 repetitions of each size, with two latencies each."""
    chance = np.random.default_rng(seed)
    exact = [besides + 2 * latency_s + size * per_byte_s for size in SIZES]
    return [(one * np.exp(noise * chance.standard_normal(30))).tolist() for one in exact]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("latency_s", "per_byte_s"), [(5e-5, 8e-9), (1e-3, 1e-10), (0.0, 1e-9)])
def test_known_constants_lie_in_the_interval(latency_s: float, per_byte_s: float, seed: int) -> None:
    """With 5 % noise; twice the interval, which one in twenty may leave."""
    found = fit("link", [2] * 5, SIZES, times(latency_s, per_byte_s, 0.05, besides=1e-4, seed=seed), besides=[1e-4] * 5)
    for constant, truth in ((found.latency_s, latency_s), (found.per_byte_s, per_byte_s)):
        half = constant.high - constant.low
        assert constant.low - half / 2 - 1e-12 <= truth <= constant.high + half / 2 + 1e-12


def test_without_noise_the_constants_are_exact() -> None:
    """A line through points of a line."""
    found = fit("link", [2] * 5, SIZES, times(3e-5, 2e-9, 0.0))
    assert found.latency_s.value == pytest.approx(3e-5, rel=1e-6)
    assert found.per_byte_s.value == pytest.approx(2e-9, rel=1e-9)
    assert found.doubt < 1e-9
    assert found.wire.per_byte_s == found.per_byte_s.value


def test_constants_are_never_negative() -> None:
    """Times that fall with the size give a latency, and no negative time for a byte."""
    found = fit("link", [2] * 5, SIZES, [[1e-3 - 1e-11 * size] * 5 for size in SIZES])
    assert found.per_byte_s.value == 0
    assert found.latency_s.value > 0


def test_noise_is_said_with_what_to_do() -> None:
    """The link, how sure it is, and the way out."""
    with pytest.raises(NoisyError, match=r"between hosts: .*±\d+% \(allowed: ±25%\).*workbench.measure\(seconds="):
        fit("between hosts", [2] * 5, SIZES, times(1e-5, 1e-9, 3.0))


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        ([[1.0], [2.0]], "times of 2 sizes were given; 3 at least"),
        ([[1.0], [2.0], []], r"the times \[\] were given"),
        ([[1.0], [-2.0], [3.0]], r"the times \[-2.0\] were given"),
        ([[1.0], [float("nan")], [3.0]], "positive numbers of seconds"),
    ],
)
def test_times_that_cannot_be(seconds: list[list[float]], says: str) -> None:
    """Are refused with their value."""
    with pytest.raises(ValueError, match=says):
        fit("link", [2] * len(seconds), SIZES[: len(seconds)], seconds)
