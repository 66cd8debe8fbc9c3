"""Runs what ``tests/parallel`` has on retired software inside the ranks of real jobs."""

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
@pytest.mark.parametrize("part", ["mxnet_verbs", "mxnet_training", "estimator"])
def test_ranks(jobs: Runner, n: int, part: str) -> None:
    """Every test passes on each of n ranks that this environment's mpiexec started."""
    words = (*PYTEST, *OLD, str(PARALLEL / f"test_{part}.py"))
    check(jobs.mpiexec(n, *words, deadline_s=DEADLINE_S, **ENV, TF_CPP_MIN_LOG_LEVEL="3"), n)


def test_graphs_of_an_older_tensorflow(jobs: Runner) -> None:
    """TensorFlow 2.15 runs many collectives in one graph as the newest does, and raises the same errors."""
    words = (*PYTEST, *OLD, str(PARALLEL.parent / "frameworks" / "test_tensorflow_graphs.py"))
    check(jobs.mpiexec(2, *words, deadline_s=DEADLINE_S, **ENV, TF_CPP_MIN_LOG_LEVEL="3"), 2)


def test_examples_of_docstrings(jobs: Runner) -> None:
    """The examples in the docstrings of ``workbench.mxnet`` are true; elsewhere they are skipped."""
    job = jobs.python("-m", "pytest", *OLD, "tests/test_docs.py", "-k", "mxnet", deadline_s=50)
    assert job.code == 0, job.report()
    assert " passed" in job.out(0)
    assert " skipped" not in job.out(0)
