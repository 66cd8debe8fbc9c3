"""The same verbs on two ranks: on one GPU, or on a GPU each where there are two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_running import WAYS, marks, results

if TYPE_CHECKING:
    from gpu_running import Runner

pytestmark = [*marks(), pytest.mark.timeout(200)]


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_get_what_torch_computes(jobs: Runner, way: str) -> None:
    """Every verb, dtype and shape, over NCCL and by way of the host: the ranks know what each of them gives."""
    found = results(jobs, 2, way, "verbs", deadline_s=180.0)
    assert [each["wrong"] for each in found] == [[], []]
    assert all(each["way"].startswith({"nccl": "NCCL", "staged": "PINNED"}[way]) for each in found)
    assert all(each["checks"] > 4000 for each in found)
