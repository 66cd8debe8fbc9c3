"""Runs ``tests/frameworks/training`` inside two ranks under mpiexec: one run for each backend of Keras.

The backend is fixed when Keras is imported, and importing it takes seconds: few runs with many tests in each. Then
scripts as a user starts them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from installed import needs
from test_parallel import ENV, PYTEST, check
from thorough import once_more

if TYPE_CHECKING:
    from running import Job, Runner

DEADLINE_S = 580.0
pytestmark = [
    pytest.mark.usefixtures("warm_tensorflow"),
    pytest.mark.parallel,
    pytest.mark.slow,
    pytest.mark.timeout(DEADLINE_S + 20),
]

TRAINING = Path(__file__).resolve().parent / "frameworks" / "training"
SCRIPTS = TRAINING / "scripts"
# XLA takes longer to optimise these small functions than to run them.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
ALL = ("keras_fit", "keras_callbacks", "keras_mixed", "keras_elastic", "saved")
MORE = ("tensorflow_training", "tensorflow_batch_norm", "tensorflow_elastic", "together")


@pytest.mark.parametrize(
    ("backend", "which", "names"),
    [
        ("tensorflow", "not thorough", (*ALL, *MORE)),
        once_more("tensorflow", "thorough", (*ALL, *MORE)),
        *(once_more(backend, "", ALL) for backend in ("torch", "jax")),
    ],
    ids=str,
)
def test_training(
    jobs: Runner, backend: str, which: str, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every test for this backend passes on each of two ranks; how far off they were is printed."""
    needs("keras", backend)
    files = [str(TRAINING / f"test_{name}.py") for name in names]
    # Another folder's conftest.py may have fixtures of its own for the same names.
    words = (*PYTEST, f"--confcutdir={TRAINING}", "--timeout=120", "-rP", "-m", which, *files)
    job = jobs.mpiexec(2, *words, deadline_s=DEADLINE_S, KERAS_BACKEND=backend, **QUIET, **ENV)
    check(job, 2)
    with capsys.disabled():
        print("", *re.findall(rf"^{backend} .*off by.*", job.out(0), re.MULTILINE), sep="\n")


def script(jobs: Runner, name: str, *words: str, **env: str) -> Job:
    """Run a script on two ranks; it must end by itself, and nothing of it may be left."""
    job = jobs.mpiexec(2, str(SCRIPTS / name), *words, deadline_s=120.0, **QUIET, **env)
    assert job.code is not None, job.report()
    assert not job.left, job.report()
    return job


@pytest.mark.parametrize(
    "backend", ["tensorflow", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("torch", "jax"))]
)
def test_a_rank_that_raises_in_fit_ends_the_job(jobs: Runner, backend: str) -> None:
    """The job ends with an exit code, and the other rank names the one that raised, with its exception."""
    needs("keras", backend)
    job = script(jobs, "fit_fails.py", "1", KERAS_BACKEND=backend)
    assert job.code != 0, job.report()
    for rank in range(2):
        assert "ValueError: a mistake on purpose" in job.err(rank), job.report()
        assert "came to the end" not in job.out(rank), job.report()
    assert "Rank 1 raised" in job.err(0), job.report()


@pytest.mark.parametrize(
    "backend", [pytest.param(each, marks=pytest.mark.thorough) for each in ("torch", "tensorflow", "jax")]
)
def test_a_rank_that_stops_early_is_named(jobs: Runner, backend: str) -> None:
    """The other rank trains on, and learns who has ended and what is missing."""
    needs("keras", backend)
    job = script(jobs, "fit_stops.py", KERAS_BACKEND=backend)
    assert job.code != 0, job.report()
    assert "came to the end" in job.out(1), job.report()
    assert "came to the end" not in job.out(0), job.report()
    assert "Rank 1 has left the job" in job.err(0), job.report()
