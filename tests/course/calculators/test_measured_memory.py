"""Bytes of a training on two ranks, beside the formula."""

from __future__ import annotations

import pytest

from workbench.course.calculators.kept import of_the_system
from workbench.course.calculators.measured_memory import MemoryComparison, measured

SIZES = 1024, 2048, 1024  # 4.2 million parameters: 17 MB, well above what buffers and libraries take
PARTS = "parameters", "gradients", "optimizer", "activations"


@pytest.fixture(scope="module")
def held(warm_torch: None) -> MemoryComparison:
    """One measurement for the tests of this file."""
    return measured(ranks=2, ways=["plain", "optimizer"], optimizer="Adam", sizes=SIZES)


@pytest.mark.parallel
@pytest.mark.timeout(150)
def test_tensors_keep_what_the_formula_says(held: MemoryComparison) -> None:
    """Within 1 %: each part, plain and sharded. Adam's counts of steps are not in it."""
    for row in held.rows:
        for part in PARTS:
            found, said = getattr(row.kept, part), getattr(row.formula, part)
            assert found == pytest.approx(said, rel=0.01), (row.sharding, part)


@pytest.mark.thorough
@pytest.mark.parallel
@pytest.mark.timeout(150)
def test_gradients_and_parameters_in_parts(warm_torch: None) -> None:
    """Within 1 %, too: a rank has its part of the gradients, and of the parameters."""
    found = measured(ranks=2, ways=["gradients", "parameters"], optimizer="Adam", sizes=SIZES)
    test_tensors_keep_what_the_formula_says(found)


@pytest.mark.parallel
@pytest.mark.timeout(300)
@pytest.mark.skipif(of_the_system() is None, reason="the system does not say what a process has")
def test_the_system_sees_the_same_difference(held: MemoryComparison) -> None:
    """Sharding saves half of Adam's state, by the system's count too."""
    plain, sharded = held.rows
    assert plain.kept.system is not None
    assert sharded.kept.system is not None
    assert plain.kept.system - sharded.kept.system == pytest.approx(plain.formula.optimizer / 2, rel=0.25)


@pytest.mark.parallel
@pytest.mark.timeout(150)
def test_the_table_has_formula_and_measurement_below_each_other(held: MemoryComparison) -> None:
    """Two lines a way, with as many columns as its head, and the total."""
    table = held.table
    assert table.column("way") == ["plain", "", "optimizer", ""]
    assert table.column("") == ["formula", "measured"] * 2
    assert table.column("total")[0] == f"{held.rows[0].formula.total / 1e6:.1f}"
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "4.19 million parameters, Adam, 2 ranks" in repr(held)


def test_a_way_that_does_not_exist_is_refused() -> None:
    """Before a job is started."""
    with pytest.raises(ValueError, match="'everything' is not a valid Sharding"):
        measured(ways=["everything"])
