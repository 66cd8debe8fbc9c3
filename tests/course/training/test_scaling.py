"""The model T(n) = G/n + C(n) against the simulator, and its picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.collectives.ring import ring_allreduce
from workbench.course.simulator import simulate
from workbench.course.tasks.t08_speedup import break_even, ring_time
from workbench.course.training.scaling import Model, line

MODEL = Model(compute_s=0.02, nbytes=768_000, alpha_s=1e-4, beta_s=1e-9)


def step(comm: Any) -> None:
    """A training step on the virtual clock."""
    comm.compute(MODEL.compute_s / comm.size)
    ring_allreduce(comm, np.ones(96_000))


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_the_model_is_what_the_simulator_measures(n: int) -> None:
    """A step takes as long by the formula as by the clock of simulated ranks."""
    run = simulate(n, step, alpha_s=MODEL.alpha_s, beta_s=MODEL.beta_s)
    assert run.time_s == pytest.approx(MODEL.step_s(n))
    assert MODEL.communicate_s(n) == pytest.approx(ring_time(n, MODEL.nbytes, MODEL.alpha_s, MODEL.beta_s))


@pytest.mark.parametrize("n", [2, 3, 64])
def test_at_the_border_nothing_is_gained(n: int) -> None:
    """With the G of break-even the speed-up is 1; with more it is above."""
    border = break_even(n, 1e6, 1e-4, 1e-9)
    assert Model(border, 1e6, 1e-4, 1e-9).speedup(n) == pytest.approx(1.0)
    assert Model(1.1 * border, 1e6, 1e-4, 1e-9).speedup(n) > 1


def test_efficiencies() -> None:
    """One rank is its own measure; weak scaling wastes less than strong; without communication both are ideal."""
    free = Model(1.0, 0.0, 0.0, 0.0)
    assert MODEL.speedup(1) == MODEL.efficiency(1) == MODEL.weak_efficiency(1) == 1
    assert MODEL.efficiency(8) < MODEL.weak_efficiency(8) < 1
    assert free.efficiency(8) == free.weak_efficiency(8) == 1


@pytest.mark.parametrize("n", [2, 4])
def test_a_line_through_two_points(n: int) -> None:
    """α and β come back from two times; noise that would make one negative gives 0."""
    points = [(nbytes, ring_time(n, nbytes, 3e-5, 2e-9)) for nbytes in (100, 1e6)]
    assert line(points[0], points[1], n) == pytest.approx((3e-5, 2e-9))
    assert line((0, 1.0), (10, 0.5), n)[1] == 0.0
