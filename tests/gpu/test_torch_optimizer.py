"""DistributedOptimizer on GPUs: what a serial run gives, with gradients that stay where they are reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_running import WAYS, marks, results

if TYPE_CHECKING:
    from gpu_running import Runner

pytestmark = [*marks(), pytest.mark.timeout(120)]
CLOSE = {"float32": 1e-4, "bfloat16": 0.05}  # the serial run adds up in another order


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
