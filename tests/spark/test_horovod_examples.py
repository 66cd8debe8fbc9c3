"""Horovod's own ``examples/spark``, unchanged, and Databricks' ``HorovodRunner``, through the alias.

They are no part of Horovod's packages, so they are run where WORKBENCH_HOROVOD_EXAMPLES names the folder ``examples``
of a checkout. The pictures that they would download are put in their place before: clothes in place of digits.
"""

from __future__ import annotations

import bz2
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from spark_cluster import missing

import workbench

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(590)]

ROWS = 400


@pytest.mark.parametrize("name", ["pytorch/pytorch_spark_mnist.py", "keras/keras_spark_mnist.py"])
def test_an_example_runs_unchanged(tmp_path: Path, name: str) -> None:
    """To its last line, the accuracy on what it has not trained on."""
    folder = os.environ.get("WORKBENCH_HOROVOD_EXAMPLES", "")
    script = Path(folder, "spark", name)
    if not folder or not script.exists():
        pytest.skip("WORKBENCH_HOROVOD_EXAMPLES names no checkout of Horovod's examples")
    if why := missing():
        pytest.skip(why)
    if sys.version_info >= (3, 12) and "distutils" in script.read_text():
        pytest.skip("this example needs distutils, which Python 3.12 has not")
    from workbench.data import fashion_mnist

    data = fashion_mnist(download=False)
    with bz2.open(tmp_path / "mnist.bz2", "wt") as file:
        for picture, label in zip(data.train_x[:ROWS], data.train_y[:ROWS], strict=True):
            flat = np.rint(np.asarray(picture).reshape(-1) * 255).astype(int)
            file.write(f"{label} " + " ".join(f"{i + 1}:{grey}" for i, grey in enumerate(flat) if grey) + "\n")
    words = ["--num-proc", "2", "--epochs", "1", "--work-dir", str(tmp_path / "work"), "--data-dir", str(tmp_path)]
    assert "Test accuracy: " in output(script, *words)


RUNNER = """
from pyspark.sql import SparkSession
from sparkdl import HorovodRunner

def train(lr):
    import horovod.torch as hvd
    hvd.init()
    return hvd.rank(), hvd.size(), lr

if __name__ == "__main__":
    SparkSession.builder.master("local[2]").getOrCreate()
    print("returned", HorovodRunner(np=2).run(train, lr=0.5))
"""


def test_databricks_runner_takes_the_tasks_of_an_active_spark(tmp_path: Path) -> None:
    """What rank 0 returns, as on one machine without Spark."""
    if why := missing():
        pytest.skip(why)
    (tmp_path / "driver.py").write_text(RUNNER)
    assert "returned (0, 2, 0.5)" in output(tmp_path / "driver.py")


def output(script: Path, *words: str) -> str:
    """What a driver of Spark prints under the alias."""
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    env["PYTHONPATH"] = str(Path(workbench.__file__).parents[1])
    command = [sys.executable, "-m", "workbench.as_horovod", str(script), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no SparkContext is active" not in done.stderr
    return done.stdout
