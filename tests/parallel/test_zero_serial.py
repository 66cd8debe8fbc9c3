"""ZeRO 2 and 3 compute what the serial run computes, on any number of ranks: these few tests run on 2 and on 4."""

from __future__ import annotations

import pytest
from zero import OPTIMIZERS, STAGES, Twins, mixed, net


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("stage", STAGES)
def test_equals_serial(stage: str, make: str, n: int) -> None:
    """After each step weights and, at the end, the state of all ranks together are the serial run's to 1e-12."""
    twins = Twins(stage, net, OPTIMIZERS[make])
    for step in range(6):
        twins.step(step)
        twins.check()
    twins.check_state()


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_model_may_have(stage: str, n: int) -> None:
    """Frozen, unused, tied, and empty parameters, two dtypes, an attention; a layer that one rank alone uses."""
    twins = Twins(stage, mixed, OPTIMIZERS["Adam"])
    for step in range(5):
        twins.step(step)
        twins.check()
    twins.check_state()
