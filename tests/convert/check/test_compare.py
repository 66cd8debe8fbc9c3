"""Weights are compared by how much they have changed."""

from __future__ import annotations

import numpy as np

from workbench.convert.check.compare import Comparison
from workbench.convert.check.record import Record


def ran(end: np.ndarray, begin: np.ndarray) -> Record:
    """A run of one step."""
    return Record([0.5], [end], [begin], steps=1)


def test_a_difference_counts_by_the_change() -> None:
    """Of Adam: one weight of 10,000 moved by its rate in the other direction, since its gradient is rounding."""
    begin = np.ones(10_000)
    end = begin + 0.001
    other = end.copy()
    other[0] = begin[0] - 0.001
    assert Comparison([ran(end, begin)], [ran(end, begin)]).weights() == 0
    assert np.isclose(Comparison([ran(end, begin)], [ran(other, begin)]).weights(), 2e-4)
    assert Comparison([ran(end, begin)], [ran(other, begin)]).agrees


def test_a_small_change_that_is_wrong_is_seen() -> None:
    """A rate of 1e-7 that is doubled, which differs by less than 1e-6 of the weights."""
    begin = np.ones(4)
    assert not Comparison([ran(begin + 1e-7, begin)], [ran(begin + 2e-7, begin)]).agrees
    assert Comparison([ran(begin, begin)], [ran(begin, begin)]).agrees
