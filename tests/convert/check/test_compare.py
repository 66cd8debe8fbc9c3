"""Weights are compared by how much they have changed."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.convert.check.compare import Comparison, table
from workbench.convert.check.record import Record


def ran(end: np.ndarray, begin: np.ndarray) -> Record:
    """A run of one step."""
    return Record([0.5], [end], [begin], steps=1)


def test_a_difference_counts_by_the_change() -> None:
    """Of Adam: one weight of 10,000 moved by its rate in the other direction, since its gradient is rounding."""
    begin = np.ones(10_000)
    end, other = begin + 0.001, begin + 0.001
    other[0] = begin[0] - 0.001
    assert Comparison([ran(end, begin)], [ran(end, begin)]).weights() == 0
    assert np.isclose(Comparison([ran(end, begin)], [ran(other, begin)]).weights(), 2e-4)
    assert Comparison([ran(end, begin)], [ran(other, begin)]).agrees


def test_a_small_change_that_is_wrong_is_seen() -> None:
    """A rate of 1e-7 that is doubled, which differs by less than 1e-6 of the weights."""
    begin = np.ones(4)
    assert not Comparison([ran(begin + 1e-7, begin)], [ran(begin + 2e-7, begin)]).agrees
    assert Comparison([ran(begin, begin)], [ran(begin, begin)]).agrees


@pytest.mark.parametrize(("samples", "said"), [(163, True), (164, False)])
def test_repeated_samples_are_named(samples: int, said: bool) -> None:
    """Two ranks take 82 of 163 samples each, so one counts twice."""
    torch = pytest.importorskip("torch")
    from torch.utils.data import DistributedSampler

    from workbench.convert.check.torch_recording import recording

    found = Record([0.5], [np.ones(1)], [np.zeros(1)], steps=1)
    with recording(found, steps=1):
        DistributedSampler(torch.arange(samples), num_replicas=2, rank=0).set_epoch(1)
    assert ("DistributedSampler repeats" in table(Comparison([found], [found]))) == said
