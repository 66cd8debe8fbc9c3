"""Stop a job, and start it again on another number of ranks: it goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from installed import needs
from thorough import once_more

from workbench.elastic.checkpoint_files import complete, directory_of, read_manifest

if TYPE_CHECKING:
    from running import Job, Runner

needs("torch")
needs("mpi4py")
SCRIPT = str(Path(__file__).resolve().parents[1] / "helpers" / "checkpoint_training.py")
pytestmark = [pytest.mark.usefixtures("warm_torch"), pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(240)]


def began(job: Job, n: int) -> set[tuple[int, int]]:
    """At which step, with how many losses, each rank began."""
    lines = [job.out(rank).split("\n")[0].split() for rank in range(n)]
    assert all(line and line[0] == "from" for line in lines), job.report()
    return {(int(step), int(losses)) for _, step, losses in lines}


def weights(job: Job) -> float:
    """What rank 0 printed at the end."""
    assert job.code == 0, job.report()
    line = job.out(0).strip().split("\n")[-1].split()
    assert (line[0], line[2]) == ("weights", "10"), job.report()
    return float(line[1])


UNDISTURBED: dict[str, float] = {}


def undisturbed(kind: str, jobs: Runner, tmp_path: Path) -> float:
    """The weights of a run without a stop."""
    if kind not in UNDISTURBED:
        UNDISTURBED[kind] = weights(jobs.mpiexec(1, SCRIPT, str(tmp_path / "whole"), "10", kind, deadline_s=90.0))
    return UNDISTURBED[kind]


@pytest.mark.parametrize("kind", ["adam-sharded", once_more("sgd"), once_more("adam")])
def test_each_start_goes_on_with_other_ranks(kind: str, jobs: Runner, tmp_path: Path) -> None:
    """2 ranks, then 3, then 1: each goes on from the last commit, and the weights are those of a run without a stop."""
    folder = str(tmp_path / "parts")
    step = 0
    for n, until in ((2, 4), (3, 7), (1, 10)):
        job = jobs.mpiexec(n, SCRIPT, folder, str(until), kind, deadline_s=90.0)
        assert job.code == 0, job.report()
        assert began(job, n) == {(step, step)}, job.report()
        manifest = read_manifest(directory_of(Path(folder), complete(Path(folder))[-1]))
        assert manifest["ranks"] == n
        step = until
    assert weights(job) == pytest.approx(undisturbed(kind, jobs, tmp_path), rel=1e-9)


@pytest.mark.parametrize("mode", [once_more("fails"), "leaves"])
def test_a_job_that_broke_off_is_started_again(mode: str, jobs: Runner, tmp_path: Path) -> None:
    """A rank raises, or is killed, after the seventh step: the next job, of other ranks, has a checkpoint of before."""
    folder = str(tmp_path / "parts")
    broken = jobs.mpiexec(3, SCRIPT, folder, "8", "adam-sharded", mode, deadline_s=90.0)
    assert broken.code != 0, broken.report()
    again = jobs.mpiexec(2, SCRIPT, folder, "10", "adam-sharded", deadline_s=90.0)
    ((step, losses),) = began(again, 2)
    assert step == losses <= 6, again.report()
    assert weights(again) == pytest.approx(undisturbed("adam-sharded", jobs, tmp_path), rel=1e-9)
