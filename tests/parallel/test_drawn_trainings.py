"""Trainings that a seed draws, against their serial runs: modes, accumulation, clipping, closures, swapped weights."""

from __future__ import annotations

import pytest
from drawn_trainings import Training
from thorough import quick


@pytest.mark.parametrize("seed", quick(range(20), *range(4)))
def test_a_training_that_is_drawn(seed: int) -> None:
    """Whatever goes together has the weights of the serial run after each step."""
    Training(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_trainings_that_are_drawn() -> None:
    """As above, one after the other in one job."""
    for seed in range(20, 400):
        Training(seed).run()
