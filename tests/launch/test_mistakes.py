"""The mistakes that must not hang a notebook, in a script under ``workbench run``: it ends, and says whose it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

N = 4
DEADLINE_S = 40.0

HEAD = """
import os, signal, time
import numpy as np
import workbench as hvd
hvd.init()
rank, x = hvd.rank(), np.ones(3)
"""

# The mistake, and words that every ending has somewhere in what the ranks print.
MISTAKES = {
    "a collective inside an if": ("if rank == 0:\n    hvd.allreduce(x, name='lonely')", ["has left the job", "lonely"]),
    "one rank raises before it": (
        "if rank == 2:\n    raise KeyError('lr')\nhvd.allreduce(x)",
        ["KeyError: 'lr'", "RankFailedError: Rank 2 raised an exception"],
    ),
    "uneven batches": (
        "for step in range(5 + (rank == 1)):\n    hvd.allreduce(x, name=f'step{step}')",
        ["step5", "has left the job"],
    ),
    "different names": ("hvd.allreduce(x, name=f'mine{rank}')", ["MissingRanksError: The ranks wait for each other"]),
    "another order of two waits": (
        "for name in 'ab' if rank else 'ba':\n    hvd.allreduce(x, name=name)",
        ["The ranks wait for each other", "waiting for 'allreduce."],
    ),
    "different verbs": (
        "(hvd.allgather if rank == 3 else hvd.allreduce)(x, name='m')",
        ["MismatchError: Mismatched operations"],
    ),
    "a killed rank": ("if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nhvd.allreduce(x)", ["SIGKILL"]),
}


def run(jobs: Runner, path: Path, text: str, *options: str, **env: str) -> Job:
    """``workbench run -np 4 python script.py``."""
    script = path / "mistake.py"
    script.write_text(HEAD + text + "\nprint('came to the end')\n")
    words = ("-m", "workbench.cli.main", "run", "-np", str(N), *options, "python", str(script))
    return jobs.python(*words, deadline_s=DEADLINE_S, **env)


@pytest.mark.parametrize("how", MISTAKES)
def test_a_mistake_ends_the_job(jobs: Runner, tmp_path: Path, how: str) -> None:
    """Exit code, the culprit's words, and no process left."""
    text, words = MISTAKES[how]
    job = run(jobs, tmp_path, text)
    assert job.code not in (0, None), job.report()
    assert not job.left, job.report()
    said = job.out(0) + job.err(0)
    for word in words:
        assert word in said, job.report()


def test_a_rank_that_is_busy_for_ever(jobs: Runner, tmp_path: Path) -> None:
    """After the time that the user allows the job ends, with the place where the busy rank stands."""
    text = "def busy_for_ever():\n    while True:\n        time.sleep(0.01)\nif rank == 3:\n    busy_for_ever()\n"
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    job = run(jobs, tmp_path, text + "hvd.allreduce(x, name='late')", **limits)
    assert job.code not in (0, None), job.report()
    assert not job.left, job.report()
    said = job.out(0) + job.err(0)
    assert "3: [allreduce.late]" in said, job.report()
    assert "in busy_for_ever" in said, job.report()
    assert "DeadlineError: 'allreduce.late'" in said, job.report()
