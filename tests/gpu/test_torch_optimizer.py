"""DistributedOptimizer on GPUs: what a serial run gives, with gradients that stay where they are reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_running import WAYS, marks, results

if TYPE_CHECKING:
    from gpu_running import Runner

pytestmark = [*marks(), pytest.mark.timeout(120)]
CLOSE = {"float32": 1e-4, "bfloat16": 0.05}  # the serial run adds up in another order
ROUNDED = {"fp16": 0.001, "bf16": 0.01}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("words", [(), ("--keep-grads",)], ids=["grads set to None", "grads zeroed"])
def test_training_is_the_serial_run(jobs: Runner, way: str, dtype: str, words: tuple[str, ...]) -> None:
    """Two ranks with half a batch each end with the weights of one with all of it, up to rounding, and both alike.

    Every gradient lies in a bucket on the GPU then, and in a steady step torch's CPU never waits for the GPU.
    """
    for found in results(jobs, 2, way, "trains", "--dtype", dtype, *words):
        assert found["from_serial"] < CLOSE[dtype] < found["moved"]
        assert found["ranks_equal"]
        assert found["in_buckets"] == found["gradients"] == 6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("compression", ROUNDED)
def test_gradients_that_are_cast_lie_in_buckets_too(jobs: Runner, way: str, compression: str) -> None:
    """In float32 beside what is reduced, in 16 bits; the CPU waits for the GPU as little as without."""
    for found in results(jobs, 2, way, "trains", "--compression", compression):
        assert found["from_serial"] < ROUNDED[compression] < found["moved"]
        assert found["ranks_equal"]
        assert found["in_buckets"] == found["gradients"] == 6
