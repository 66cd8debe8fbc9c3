"""Computing and reducing at the same time: closed forms."""

from __future__ import annotations

from itertools import pairwise

import pytest

from workbench.simulate.measured.contention import Contention, simulate_together
from workbench.simulate.steps import Policy, Span, simulate

POLICY = Policy(fusion_bytes=0)
# back's gradients take 2 s, in front's backward of 20 s; front's take none to speak of
LAYERS = [Span("front", 5.0, 20.0, values=1), Span("back", 5.0, 10.0, values=100)]


def reduce_s(nbytes: float) -> float:
    """2 s for 100 numbers."""
    return nbytes / 200 if nbytes > 4 else 0.0


def test_without_contention_nothing_changes() -> None:
    """The same step."""
    assert simulate_together(LAYERS, reduce_s, POLICY, Contention()) == simulate(LAYERS, reduce_s, POLICY)


@pytest.mark.parametrize(("slower", "longer"), [(1.25, 0.4), (2.0, 1.0), (4.0, 1.5)])
def test_computing_stretches_by_what_overlaps(slower: float, longer: float) -> None:
    """In 2 s of overlap 2/slower seconds are computed: the step is longer by the rest."""
    found = simulate_together(LAYERS, reduce_s, POLICY, Contention(compute=slower))
    assert found.step_s == pytest.approx(40 + longer, rel=0.01)


@pytest.mark.parametrize("slower", [1.5, 3.0])
def test_a_reduction_stretches_only_while_there_is_computing(slower: float) -> None:
    """A reduction that lies within backward takes ``slower`` times as long."""
    found = simulate_together(LAYERS, reduce_s, POLICY, Contention(reduce=slower))
    (long,) = [event for event in found.events if event.what == "reduce" and event.names == ("back",)]
    assert long.end_s - long.begin_s == pytest.approx(2 * slower, rel=0.05)
    assert found.step_s == pytest.approx(40)


def test_more_contention_never_makes_a_step_shorter() -> None:
    """For any pair of factors, nor does less overlap than there is time for."""
    lengths = [
        simulate_together(LAYERS, lambda nbytes: nbytes / 20, POLICY, Contention(c, r)).step_s
        for c, r in [(1.0, 1.0), (1.2, 1.0), (1.2, 2.0), (2.0, 2.0), (2.0, 5.0)]
    ]
    assert all(a <= b * 1.005 for a, b in pairwise(lengths)), lengths


@pytest.mark.parametrize(("compute", "reduce"), [(0.5, 1.0), (1.0, float("nan")), (-1.0, 1.0)])
def test_factors_that_cannot_be(compute: float, reduce: float) -> None:
    """Are refused with their value."""
    with pytest.raises(ValueError, match="a finite number of times, 1 at least"):
        Contention(compute, reduce)
