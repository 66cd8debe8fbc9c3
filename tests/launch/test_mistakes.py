"""A rank that is busy for ever, in a script under ``workbench run``: the job ends, and says where that rank is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

N = 2
DEADLINE_S = 40.0

HEAD = """
import os, signal, time
import numpy as np
import workbench as hvd
hvd.init()
rank, x = hvd.rank(), np.ones(3)
"""


def run(jobs: Runner, path: Path, text: str, *options: str, **env: str) -> Job:
    """``workbench run -np 2 python script.py``."""
    script = path / "mistake.py"
    script.write_text(HEAD + text + "\nprint('came to the end')\n")
    words = ("-m", "workbench.cli.main", "run", "-np", str(N), *options, "python", str(script))
    return jobs.python(*words, deadline_s=DEADLINE_S, **env)


def test_a_rank_that_is_busy_for_ever(jobs: Runner, tmp_path: Path) -> None:
    """After the time that the user allows the job ends, with the place where the busy rank stands."""
    text = "def busy_for_ever():\n    while True:\n        time.sleep(0.01)\nif rank == 1:\n    busy_for_ever()\n"
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    job = run(jobs, tmp_path, text + "hvd.allreduce(x, name='late')", **limits)
    assert job.code not in (0, None), job.report()
    assert not job.left, job.report()
    said = job.out(0) + job.err(0)
    assert "1: [allreduce.late]" in said, job.report()
    assert "in busy_for_ever" in said, job.report()
    assert "DeadlineError: 'allreduce.late'" in said, job.report()
