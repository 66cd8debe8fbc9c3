"""A rank that is killed amid collectives on a GPU ends what the others wait for, on the GPU and on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_running import WAYS, marks, need, start

if TYPE_CHECKING:
    from gpu_running import Runner

pytestmark = [*marks(), pytest.mark.timeout(120)]
SOON_S = 30.0


@pytest.mark.parametrize("way", WAYS)
def test_the_survivor_ends_with_an_error(jobs: Runner, way: str) -> None:
    """Its error names the rank that was lost; its stream is not stuck behind a kernel that waits for ever."""
    need(way, 2)
    job = start(jobs, 2, way, "dies", deadline_s=60.0)
    assert job.code is not None, job.report()  # else it was stopped
    assert not job.left, job.report()
    name, seconds, *_ = job.out(0).split()
    assert name == "PeerLostError", job.report()
    assert float(seconds) < SOON_S, job.report()
    assert "Rank 1" in job.out(0) or "another rank's GPU" in job.out(0), job.report()
