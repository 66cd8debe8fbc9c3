"""A long training that fails now and then and goes on from its last commit: where does the time go?

Failures come without memory: the time from one to the next is exponential, with the mean MTBF/n for n ranks, because
each of them fails once in an MTBF and any of them stops the job. After a failure the job restarts, which takes
``restart_s``, and repeats the work since its last commit.

Nothing is drawn but the times between failures. So the time between two of them is divided without a loop: restart,
whole segments of ``every`` steps and a commit, and a rest that is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FAILURES = 50_000
"""That a simulated job meets: then the shares of the time are right to about one part in a hundred."""


@dataclass(frozen=True)
class Spent:
    """Where the time of a job went; all in seconds.

    Args:
        work_s: steps that were committed.
        commits_s: commits that ended.
        redone_s: what was lost with a failure: steps since the last commit, and a commit that was cut off.
        restarts_s: between a failure and the next step.
    """

    work_s: float
    commits_s: float
    redone_s: float
    restarts_s: float

    @property
    def total_s(self) -> float:
        return self.work_s + self.commits_s + self.redone_s + self.restarts_s

    @property
    def longer(self) -> float:
        """Total time over work: 1.0 without failures and commits. Infinite if nothing was ever committed."""
        return self.total_s / self.work_s if self.work_s else float("inf")

    @property
    def waste(self) -> float:
        """Commits and lost steps per second of work: what the interval can change."""
        return (self.commits_s + self.redone_s) / self.work_s if self.work_s else float("inf")


def failing_job(
    every: int,
    step_s: float,
    commit_s: float,
    restart_s: float,
    mtbf_s: float,
    ranks: int,
    failures: int = FAILURES,
    seed: int = 0,
) -> Spent:
    """Simulate a job until it has failed so many times.

    Args:
        every: steps from one commit to the next.
        step_s, commit_s, restart_s: what each takes, in seconds.
        mtbf_s: mean time between failures of one rank, in seconds.
        ranks: how many the job has.
        failures: to simulate.
        seed: the same seed, the same times between failures: two intervals can be compared.

    Example:
        >>> alone, many = (failing_job(100, 1.0, 10.0, 60.0, 1e6, ranks) for ranks in (1, 100))
        >>> round(alone.longer, 2), round(many.longer, 2)
        (1.1, 1.11)
    """
    lifetimes = np.random.default_rng(seed).exponential(mtbf_s / ranks, failures)
    restarts = np.minimum(lifetimes, restart_s)
    segments = (lifetimes - restarts) // (every * step_s + commit_s)
    work, commits = segments.sum() * every * step_s, segments.sum() * commit_s
    redone = lifetimes.sum() - restarts.sum() - work - commits
    return Spent(float(work), float(commits), float(redone), float(restarts.sum()))


def best_interval(
    step_s: float, commit_s: float, restart_s: float, mtbf_s: float, ranks: int, tried: Sequence[int] = ()
) -> tuple[int, Spent]:
    """The interval with the least waste in the simulator, in steps, among those tried.

    Args:
        step_s, commit_s, restart_s, mtbf_s, ranks: as for :func:`failing_job`.
        tried: intervals in steps; else 1, 2, 3 … and further apart as they grow.

    Example:
        >>> 100 < best_interval(1.0, 10.0, 60.0, 1e5, 100)[0] < 200
        True
    """
    found = {
        every: failing_job(every, step_s, commit_s, restart_s, mtbf_s, ranks)
        for every in tried or _spread(mtbf_s / ranks / step_s)
    }
    return min(found.items(), key=lambda item: (item[1].waste, item[0]))


def _spread(most: float) -> list[int]:
    """Whole numbers from 1 on, each about a tenth more than the last."""
    found = [1]
    while found[-1] < most:
        found.append(max(found[-1] + 1, round(found[-1] * 1.1)))
    return found
