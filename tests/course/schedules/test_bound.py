"""The bound is the largest over the layers; that no schedule beats it is in test_played.py."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.course.schedules.bound import least_step
from workbench.simulate.steps import Span


def test_it_is_each_layer_s_own_sum() -> None:
    """Against the formula, written out for three layers."""
    chance = np.random.default_rng(5)
    for _ in range(50):
        f, w = chance.uniform(0, 2, (2, 3)).tolist()
        values = chance.integers(1, 100, 3).tolist()
        layers = [Span("a", f[0], w[0], values[0]), Span("b", f[1], w[1], values[1]), Span("c", f[2], w[2], values[2])]
        a, b, c = values
        wanted = max(
            0.5 + 0.04 * a + sum(f) + sum(w),
            0.5 + 0.04 * (a + b) + f[1] + f[2] + w[1] + w[2],
            0.5 + 0.04 * (a + b + c) + f[2] + w[2],
        )
        assert least_step(layers, lambda nbytes: 0.5 + 0.01 * nbytes) == pytest.approx(wanted)


def test_layers_without_gradients_send_nothing() -> None:
    """In front they cost no latency; computing is a bound all the same."""
    layers = [Span("update", 1.0, 1.0, 0), Span("a", 1.0, 1.0, 10)]
    assert least_step(layers, lambda nbytes: 0.5) == 4.0
    assert least_step(layers, lambda nbytes: 5.0) == 7.0
