"""The examples for retired software, started as a person starts them: written for Horovod, run by the workbench."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from baseline import nearest_mean_accuracy
from loading import EXAMPLES

from workbench import data

if TYPE_CHECKING:
    from running import Job, Runner

DEADLINE_S = 150.0
pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(2 * DEADLINE_S + 60)]

RUN = ("-m", "workbench.cli.main", "run", "--as-horovod")


def run(jobs: Runner, n: int, script: str, *words: str, **env: str) -> Job:
    """Start an example with n ranks; it must end well, in time, and leave nothing behind."""
    line = (*RUN, "-np", str(n), "python", str(EXAMPLES / script), *words)
    job = jobs.python(*line, deadline_s=DEADLINE_S, TF_CPP_MIN_LOG_LEVEL="3", **env)
    assert (job.code, job.left) == (0, ()), job.report()
    return job


@pytest.mark.parametrize("n", [1, 2])
def test_mxnet_learns(jobs: Runner, n: int) -> None:
    """Rank 0 alone reports; each test image counts once; the network beats the nearest mean."""
    lines = run(jobs, n, "mxnet_mnist.py").out(0).splitlines()
    found = [re.fullmatch(r"\[0\]<stdout>:Epoch: (\d)  Loss: \S+  Accuracy: (\d+)/(\d+) = \S+", line) for line in lines]
    assert all(found), lines
    assert [each[1] for each in found if each] == list("12345")
    right, count = int(found[-1][2]), int(found[-1][3])
    images = data.digits()
    assert count == len(images.test_x)
    assert right / count > nearest_mean_accuracy(images)


def test_mxnet_learns_from_larger_images(jobs: Runner) -> None:
    """With Fashion-MNIST the same script is far better after two epochs than a guess; skipped where it is missing."""
    if not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("dataset-fashion-mnist is not installed")
    words = ["--data", "fashion-mnist", "--limit", "2000", "--epochs", "2"]
    last = run(jobs, 2, "mxnet_mnist.py", *words).out(0).splitlines()[-1]
    assert float(last.rpartition("= ")[2]) > 0.5


def test_estimator_learns_and_goes_on(jobs: Runner, tmp_path: Path) -> None:
    """The ranks share the steps; rank 0 alone saves in the folder; started again, they go on from there."""
    folder, others = tmp_path / "model", tmp_path / "others"
    others.mkdir()
    accuracies = []
    for begin, end in ((0, 100), (100, 200)):
        job = run(jobs, 2, "tensorflow_mnist_estimator.py", "--model-dir", str(folder), TMPDIR=str(others))
        (line,) = job.out(0).splitlines()
        said = re.fullmatch(rf"\[0\]<stdout>:Step: {begin} to {end}  Loss: \S+  Accuracy: (\S+)", line)
        assert said, line
        accuracies.append(float(said[1]))
        assert (folder / f"model.ckpt-{end}.index").exists()
    assert nearest_mean_accuracy(data.digits()) < accuracies[0] < accuracies[1]
    assert len(list(folder.glob("events.out.*"))) == 2
