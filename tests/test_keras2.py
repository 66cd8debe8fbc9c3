"""Keras 2, in ranks: ``keras`` 2.15 in the legacy environment, ``tf_keras`` with TF_USE_LEGACY_KERAS=1 elsewhere.

First what ``tests/keras2`` has, then scripts as a user of Horovod has them, unchanged, by ``workbench run``.
"""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_parallel import ENV, PYTEST, check
from thorough import once_more

if TYPE_CHECKING:
    from running import Job, Runner

DEADLINE_S = 580.0
pytestmark = [pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 20)]

HERE = Path(__file__).resolve().parent / "keras2"
KERAS_2 = find_spec("keras") is not None and metadata.version("keras").startswith("2.")
FLAVOUR = {"TF_CPP_MIN_LOG_LEVEL": "3"} | ({} if KERAS_2 else {"TF_USE_LEGACY_KERAS": "1"})
# 1. Keras 2 and TensorFlow call numpy's and Python's older ways. 2. It would rather have its newer file format.
OLD = ("-W", "ignore::DeprecationWarning", "-W", "ignore:You are saving your model as an HDF5:UserWarning")


@pytest.fixture(autouse=True)
def keras2() -> None:
    """Skip where there is none: ``pip install --no-deps tf-keras``, or ``make legacy-test``."""
    if find_spec("tensorflow") is None or not (KERAS_2 or find_spec("tf_keras")):
        pytest.skip("needs TensorFlow, and tf-keras or Keras 2")


@pytest.mark.parametrize("which", ["not thorough", once_more("thorough")])
def test_training(jobs: Runner, which: str) -> None:
    """Every test passes on each of two ranks."""
    words = (*PYTEST, *OLD, f"--confcutdir={HERE}", "--timeout=120", "-m", which, str(HERE))
    check(jobs.mpiexec(2, *words, deadline_s=DEADLINE_S, **FLAVOUR, **ENV), 2)


def example(jobs: Runner, folder: Path, script: str, *words: str, n: int = 2) -> Job:
    """Run a script for Horovod with n ranks, on digits in place of the download; it ends well and leaves nothing."""
    scripts = HERE / "scripts"
    command = ("python", str(scripts / "on_digits.py"), str(folder), str(scripts / script), *words)
    run = ("-m", "workbench.cli.main", "run", "--as-horovod", "-np", str(n), *command)
    job = jobs.python(*run, deadline_s=DEADLINE_S / 2, **FLAVOUR)
    assert (job.code, job.left) == (0, ()), job.report()
    return job


@pytest.mark.thorough
def test_tensorflow2_keras_mnist(jobs: Runner, tmp_path: Path) -> None:
    """It learns, its rates warm up, and rank 0 alone saves a model after each epoch that plain Keras can load."""
    job = example(jobs, tmp_path, "tensorflow2_keras_mnist.py")
    assert job.out(0).count("finished gradual learning rate warmup to 0.002") == 1, job.report()
    accuracies = [float(each) for each in re.findall(r"accuracy: (0\.\d+)\S* - lr", job.out(0))]
    assert len(accuracies) == 4
    assert accuracies[-1] > max(0.6, accuracies[0])
    assert sorted(path.name for path in tmp_path.glob("checkpoint*")) == [f"checkpoint-{i}.h5" for i in range(1, 5)]


@pytest.mark.skipif(not KERAS_2, reason="the script imports keras, which is Keras 3 here")
def test_keras_mnist(jobs: Runner, tmp_path: Path) -> None:
    """With a legacy optimizer and with a newer one it learns; both ranks come to the same end."""
    for words in ([], ["--legacy"]):
        job = example(jobs, tmp_path, "keras_mnist.py", *words)
        said = re.findall(r"\[(\d)\]<stdout>:Test loss: (\S+) accuracy: (\S+)", job.out(0))
        assert sorted(rank for rank, *_ in said) == ["0", "1"], job.report()
        assert said[0][1:] == said[1][1:]
        assert float(said[0][2]) > 0.6, job.report()


@pytest.mark.thorough
def test_graphs_of_tensorflow_1(jobs: Runner, tmp_path: Path) -> None:
    """Without eager execution fit trains, ranks stay equal, and verbs and the broadcast of all variables work."""
    job = example(jobs, tmp_path, "graph_mode.py")
    assert job.out(0).count("told (True, True, 3.0)") == 2, job.report()
