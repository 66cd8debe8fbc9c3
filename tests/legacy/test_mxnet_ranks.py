"""Runs what ``tests/parallel`` has on MXNet, and the core's verbs, inside the ranks of real jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_parallel import DEADLINE_S, ENV, PYTEST, check

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(DEADLINE_S + 60)]

PARALLEL = Path(__file__).resolve().parents[1] / "parallel"
OLD = ("-W", "ignore::DeprecationWarning")  # MXNet 1.9 uses what numpy 1.23 has declared old


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("part", ["verbs", "training"])
def test_mxnet(jobs: Runner, n: int, part: str) -> None:
    """Every test of MXNet passes on each of n ranks that this environment's mpiexec started."""
    words = (*PYTEST, *OLD, str(PARALLEL / f"test_mxnet_{part}.py"))
    check(jobs.mpiexec(n, *words, deadline_s=DEADLINE_S, **ENV), n)
