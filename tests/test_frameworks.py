"""Runs the contract of ``tests/frameworks`` in ranks: over shared memory and MPI, and among threads.

Keras runs on one backend in a process; each way has another one. A framework does not see over which way its arrays
travel: all run over shared memory, and over all ways where thorough tests run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_parallel import DEADLINE_S, ENV, PYTEST, check
from thorough import once_more

if TYPE_CHECKING:
    from running import Runner

# Looked for and not imported: that would take each process of a test run six seconds.
MISSING = [name for name in ("tensorflow", "jax") if find_spec(name) is None]
pytestmark = [
    pytest.mark.usefixtures("warm_tensorflow"),
    pytest.mark.parallel,
    pytest.mark.slow,
    pytest.mark.timeout(DEADLINE_S + 60),
    pytest.mark.skipif(bool(MISSING), reason=f"needs the extras {', '.join(MISSING)}"),
]

HERE = Path(__file__).resolve().parent / "frameworks"
# TensorFlow's tensors of bfloat16 do not know numpy 2's ``copy=``, which Keras' convert_to_numpy says.
WORDS = (*PYTEST, "-W", "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
RANKS = (*WORDS, str(HERE / "test_framework_ranks.py"))
# 1. XLA takes longer to optimise these small functions than to run them.
# 2. Without the compiled files of such large packages each process would spend half a minute on them.
FRAMEWORKS = ENV | {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "PYTHONDONTWRITEBYTECODE": "",
}


@pytest.mark.parametrize("which", ["not thorough", once_more("thorough")])
def test_shared_memory(jobs: Runner, which: str) -> None:
    """The contract holds on two ranks of one machine; so does what only one framework has. The names are Horovod's."""
    more = ("only_tensorflow", "only_jax", "tensorflow_graphs", "framework_names")
    words = (*RANKS, *(str(HERE / f"test_{name}.py") for name in more), "-m", which, "--timeout=200")
    check(jobs.mpiexec(2, *words, deadline_s=DEADLINE_S, KERAS_BACKEND="tensorflow", **FRAMEWORKS), 2)


@pytest.mark.thorough
def test_mpi(jobs: Runner) -> None:
    """It holds where all bytes go over MPI."""
    way = {"WORKBENCH_BACKEND": "mpi", "KERAS_BACKEND": "torch"}
    check(jobs.mpiexec(2, *RANKS, deadline_s=DEADLINE_S, **way, **FRAMEWORKS), 2)


@pytest.mark.thorough
def test_threads(jobs: Runner) -> None:
    """It holds among threads, but for what JAX compiles."""
    words = (*WORDS, str(HERE / "test_framework_threads.py"))
    check(jobs.python(*words, deadline_s=DEADLINE_S, KERAS_BACKEND="tensorflow", **FRAMEWORKS), 1)
