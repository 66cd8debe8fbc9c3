"""``mistakes_of_language_models.py``: each of its twelve is named, by an error or by what looks for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from loading import BENCHMARKS, load

if TYPE_CHECKING:
    from running import Runner

SCRIPT = "mistakes_of_language_models"
pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(200)]


def test_each_mistake_is_named(jobs: Runner) -> None:
    """On four engines: the rank, and the line where somebody waits; the next cell works."""
    job = jobs.python(str(BENCHMARKS / f"{SCRIPT}.py"), "--json", deadline_s=180)
    assert job.code == 0, job.report()
    rows = json.loads(job.out(0).splitlines()[-1])
    assert len(rows) == len(load(SCRIPT).MISTAKES) == 12
    assert [(what, told) for what, right, _, told in rows if not right] == []
