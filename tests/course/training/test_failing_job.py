"""The simulated job that fails: beside the closed form, and beside ranks that die in the simulator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from workbench.course.simulator import Kill, RankDiedError, simulate
from workbench.course.training.failing_job import FAILURES, best_interval, failing_job

JOBS = [(1.0, 10.0, 60.0, 2.6e6, 64), (6.0, 60.0, 300.0, 1.8e8, 16384), (0.1, 5.0, 0.0, 100.0, 1)]


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("every", [20, 100, 400])
def test_it_takes_what_the_closed_form_says(job: tuple[Any, ...], every: int) -> None:
    """A segment of s seconds ends after exp(λR)·(exp(λs) - 1)/λ on average (Daly 2006); within 3 %."""
    step_s, commit_s, restart_s, mtbf_s, ranks = job
    rate = ranks / mtbf_s
    segment_s = every * step_s + commit_s
    expected = math.exp(rate * restart_s) * math.expm1(rate * segment_s) / rate / (every * step_s)
    assert failing_job(every, *job, failures=200_000).longer == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("job", JOBS[:2])
def test_the_best_interval_is_young_s(job: tuple[Any, ...]) -> None:
    """Where a commit is short beside the MTBF, sqrt(2·C·MTBF) wastes at most 1 % more than the best that was tried."""
    step_s, commit_s, _, mtbf_s, ranks = job
    young = round(math.sqrt(2 * commit_s * mtbf_s / ranks) / step_s)
    best, spent = best_interval(*job)
    assert failing_job(young, *job).waste < 1.01 * spent.waste
    assert best == pytest.approx(young, rel=0.2)


def test_all_time_is_accounted_for() -> None:
    """Work, commits, lost steps and restarts are the time between failures, and none is negative."""
    spent = failing_job(50, *JOBS[0], seed=3)
    drawn = np.random.default_rng(3).exponential(JOBS[0][3] / JOBS[0][4], FAILURES)
    assert spent.total_s == pytest.approx(drawn.sum())
    assert min(spent.work_s, spent.commits_s, spent.redone_s, spent.restarts_s) >= 0
    assert spent.longer == pytest.approx(spent.total_s / spent.work_s)


def test_a_job_that_never_commits_gets_nowhere() -> None:
    """A segment that is longer than any life leaves no work, and an infinite waste."""
    spent = failing_job(10_000, 1.0, 1.0, 1.0, 10.0, 1, failures=100)
    assert spent.work_s == 0
    assert spent.longer == spent.waste == math.inf


@pytest.mark.parametrize("seed", range(5))
def test_ranks_that_die_take_as_long(seed: int) -> None:
    """Real steps of simulated ranks, killed at the drawn times and begun again at the last commit: the same sums."""
    every, step_s, commit_s, restart_s, mtbf_s, ranks, failures = 4, 1.0, 0.5, 2.0, 120.0, 3, 6
    committed = 0

    def life(comm: Any) -> int:
        done = committed
        comm.compute(restart_s)
        try:
            while True:
                for _ in range(every):
                    comm.compute(step_s)
                comm.compute(commit_s)
                comm.barrier()
                done += every
        except RankDiedError:
            return done

    lifetimes = np.random.default_rng(seed).exponential(mtbf_s / ranks, failures)
    for number, life_s in enumerate(lifetimes):
        victim = number % ranks
        run = simulate(ranks, life, kills=[Kill(victim, at_s=float(life_s))], notice_s=0.0, alpha_s=0.0, beta_s=0.0)
        committed = next(done for rank, done in enumerate(run.results) if rank != victim)
    spent = failing_job(every, step_s, commit_s, restart_s, mtbf_s, ranks, failures, seed)
    assert spent.work_s == committed * step_s
    assert spent.commits_s == committed / every * commit_s
