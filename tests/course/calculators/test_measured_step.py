"""A step's time on two ranks, beside what is calculated from measured constants."""

from __future__ import annotations

import pytest

from workbench.course.calculators.measured_step import calculated, measured
from workbench.course.calculators.steps import Training, calculate
from workbench.simulate.measured.contention import Contention
from workbench.simulate.measured.fit import Constant, Fit
from workbench.simulate.measured.links import Links
from workbench.simulate.measured.prediction import Measured, predict

pytestmark = pytest.mark.usefixtures("warm_torch")

KNOWN = Fit(Constant(2e-5, 2e-5, 2e-5), Constant(1e-9, 1e-9, 1e-9), 0.0)
TRAINING = Training(ranks=4, alpha_s=2e-5, beta_s=1e-9, bucket_bytes=10_000_000)
FOUND = Measured(Links(1, 2, KNOWN, None, announce_s=0.0), tuple(TRAINING.layers()), Contention(), 10_000_000)


@pytest.mark.parallel
@pytest.mark.timeout(150)
def test_it_trains_with_the_buckets_that_it_calculates() -> None:
    """On two real ranks: a size of buckets is measured, and calculated from the same measured layers."""
    held = measured(ranks=2, buckets=(64 << 20,), sizes=(64, 64, 10), seconds=0.1)
    assert [row.step.training.bucket_bytes for row in held.rows] == [64 << 20]
    assert held.rows[-1].step.messages == 1
    assert all(row.measured_s > 0 for row in held.rows)
    assert all(row.step.step_s >= row.step.training.compute_s * 0.999 for row in held.rows)
    assert sum(layer.values for layer in held.rows[0].found.layers) == 64 * 64 + 64 * 10
    assert held.table.column("buckets") == ["67.1 MB"]


def test_it_says_what_predict_says() -> None:
    """The same constants, layers and buckets give workbench.predict()'s step: there is one model."""
    said = predict(FOUND, ranks=[4]).rows[0]
    assert calculated(FOUND, 4, 10_000_000).step_s == pytest.approx(said.step_s, rel=1e-12)


def test_without_contention_it_is_the_calculator() -> None:
    """From measured constants or from sliders: a step in which each bucket travels by itself is the same."""
    assert calculated(FOUND, 4, 10_000_000).step_s == pytest.approx(calculate(TRAINING).step_s, rel=0.02)
