"""Is there a GPU? If not, all other files of this folder are left out."""

from __future__ import annotations

import pytest
from gpu_running import WHY, marks

pytestmark = marks()


def test_there_is_a_gpu_that_computes() -> None:
    """cupy and torch compute on it; without one the reason is said here, once for the whole folder."""
    if WHY:
        pytest.skip(f"all of tests/gpu is left out: {WHY}")
    import cupy
    import torch

    assert int(cupy.arange(4).sum()) == 6
    assert torch.arange(4, device="cuda").sum().item() == 6
