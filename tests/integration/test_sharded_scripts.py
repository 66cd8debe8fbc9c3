"""A rank of a sharded training is killed while the others wait for its part: they learn who is lost, and none hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_scripts import others, start

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.parallel]


@pytest.mark.parametrize(("stage", "when"), [("parameters", "forward"), ("gradients", "backward")])
def test_a_killed_rank_is_named(jobs: Runner, stage: str, when: str) -> None:
    """Amid a gather of parameters, or of the reduction of gradients: an error on each rank that lives."""
    job = start(jobs, "plain", "sharded_rank_dies.py", stage, when, n=3)
    assert job.code not in (0, None), job.report()
    for rank in others(job, 1):
        assert "Error: Rank 1 " in job.err(rank), job.report()
        assert "came to the end" not in job.out(rank), job.report()
