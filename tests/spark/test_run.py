"""``workbench.spark.run`` on a standalone cluster of two workers: results, tasks that die, jobs that are cancelled."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executors import with_variable
from running import eventually
from spark_cluster import Cluster

import workbench.spark
from workbench.errors import LaunchError, PeerLostError, RankFailedError

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # Spark's own, about versions of pandas
]

MARK = "WORKBENCH_TEST_OF_SPARK"
STEPS, SAMPLES = 6, 256


def train(rank: int, size: int, distributed: bool) -> tuple[list[Any], tuple[int, ...]]:
    """A small net on Fashion-MNIST in float64; each rank takes every ``size``-th sample of a batch of all."""
    import torch

    import workbench.torch as hvd
    from workbench.data import fashion_mnist

    if distributed:
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
    data = fashion_mnist(download=False)
    x = torch.as_tensor(data.train_x[: STEPS * SAMPLES]).double().reshape(STEPS, SAMPLES, -1)
    y = torch.as_tensor(data.train_y[: STEPS * SAMPLES]).long().reshape(STEPS, SAMPLES)
    torch.manual_seed(rank)
    torch.set_default_dtype(torch.float64)
    model = torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if distributed:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[step, rank::size]), y[step, rank::size])
        loss.backward()
        optimizer.step()
    places = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) if distributed else ()
    return [each.detach().numpy() for each in model.parameters()], places


def test_four_ranks_in_two_workers_train_as_one(spark: Any) -> None:
    """In float64 the weights are those of the serial run to 1e-12; two workers of one machine are one node."""
    pytest.importorskip("torch")
    if not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not here")
    found = workbench.spark.run(train, (0, 1, True), num_proc=4)
    alone, _ = subprocess_result(train, (0, 1, False))
    for weights, _ in found:
        assert max(np.abs(a - b).max() for a, b in zip(weights, alone, strict=True)) < 1e-12
    assert [places for _, places in found] == [(i, 4, i, 4) for i in range(4)]


def subprocess_result(func: Any, args: tuple[Any, ...]) -> Any:
    """Of a function in a process of its own, for it changes torch's defaults."""
    return workbench.run(func, args, np=1, use_gloo=True)[0]


def test_an_exception_comes_with_its_rank(spark: Any) -> None:
    """It is the cause, and no task was lost."""

    def fail() -> None:
        import workbench as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("a wrong value")
        hvd.barrier()

    with pytest.raises(RankFailedError, match="Rank 1 raised ValueError: a wrong value") as found:
        workbench.spark.run(fail, num_proc=2)
    assert isinstance(found.value.__cause__, ValueError)


def test_fewer_slots_than_ranks_is_said_before_anything_starts(spark: Any) -> None:
    """With both numbers, and what to change."""
    with pytest.raises(LaunchError, match=r"(?s)5 ranks need 5 slots .* has 4 .*num_proc="):
        workbench.spark.run(print, num_proc=5, start_timeout=1)


def test_mpi_is_refused(spark: Any) -> None:
    """Its launcher starts nothing within a task."""
    with pytest.raises(LaunchError, match="use_mpi=True"):
        workbench.spark.run(print, num_proc=2, use_mpi=True)


class Waiting:
    """A job whose ranks wait for ever, and something that is done to it.

    Args:
        folder: its ranks leave files here.
        act: called when all ranks are there.
    """

    def __init__(self, folder: Path, act: Any) -> None:
        self._folder, self._act = folder, act

    def __call__(self, n: int) -> str:
        """The text of the error by which it ends; no process of a rank is left."""
        folder = self._folder

        def wait() -> None:
            import os
            import time

            import workbench as hvd

            hvd.init()
            (folder / f"{hvd.rank()}").write_text(str(os.getpid()))
            time.sleep(600)

        def watch() -> None:
            assert eventually(lambda: len([each for each in folder.iterdir() if each.read_text()]) == n, 90.0)
            self._act()

        watcher = threading.Thread(target=watch)
        watcher.start()
        with pytest.raises(PeerLostError) as found:
            workbench.spark.run(wait, num_proc=n, env={MARK: str(folder)})
        watcher.join()
        assert eventually(lambda: with_variable(MARK, str(folder)) == [], 30.0)
        return str(found.value)


@pytest.mark.parametrize("which", ["with the agent", "without"])
def test_a_killed_task_ends_the_job_with_its_name(
    spark: Any, spark_cluster: Cluster, tmp_path: Path, which: str
) -> None:
    """Task, host, executor and Spark's reason are in the error; the stage is not run again."""

    def kill() -> None:
        workers, agents = spark_cluster.executors(), spark_cluster.agents()
        next(each for each in workers if (each in agents) == (which == "with the agent")).kill()

    text = Waiting(tmp_path, kill)(4)
    assert "Spark lost task " in text
    assert " on 127.0.0.1 (executor " in text
    assert "Python worker exited unexpectedly" in text
    assert len(list(tmp_path.iterdir())) == 4


def test_a_job_that_is_cancelled_in_spark_ends_its_ranks(spark: Any, tmp_path: Path) -> None:
    """The error says that it was."""
    text = Waiting(tmp_path, spark.sparkContext.cancelAllJobs)(2)
    assert "cancelled" in text


def test_the_next_job_runs_on_the_same_session(spark: Any) -> None:
    """After all that."""
    assert workbench.spark.run(pow, (2, 5), num_proc=4) == [32] * 4


DRIVER = """
    import os, sys, time
    from pathlib import Path
    from pyspark.sql import SparkSession
    import workbench.spark

    folder = Path(sys.argv[1])

    def wait():
        import workbench as hvd
        hvd.init()
        (folder / str(hvd.rank())).touch()
        time.sleep(600)

    spark = SparkSession.builder.master(sys.argv[2]).config("spark.cores.max", 2).config("spark.executor.cores", 1)
    spark = spark.getOrCreate()
    try:
        workbench.spark.run(wait, num_proc=2, env={"%s": str(folder)})
    except KeyboardInterrupt:
        print("interrupted")
        spark.stop()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_ends_leaves_nothing(tmp_path: Path, spark_cluster: Cluster, number: signal.Signals) -> None:
    """By kill -9 or Ctrl-C: no rank, no task."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER % MARK))
    before = {each.pid for each in spark_cluster.python_workers()}
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), spark_cluster.url],
        env={**spark_cluster.env, "PYTHONPATH": str(Path(workbench.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert eventually(lambda: len(list(folder.iterdir())) == 2, 150.0)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
        assert (number == signal.SIGKILL) or "interrupted" in out
        assert eventually(lambda: with_variable(MARK, str(folder)) == [], 40.0)
        assert eventually(lambda: {each.pid for each in spark_cluster.python_workers()} <= before, 40.0)
    finally:
        process.kill()
        process.wait()


ASKS_FOR_GPUS = """
    import os, sys
    from pyspark.sql import SparkSession
    import workbench.spark

    spark = SparkSession.builder.master(sys.argv[1]).config("spark.cores.max", 1).config("spark.executor.cores", 1)
    for who in ("executor", "task"):
        spark = spark.config(f"spark.{who}.resource.gpu.amount", 1)
    spark = spark.getOrCreate()
    print("ranks see", workbench.spark.run(os.getenv, ("CUDA_VISIBLE_DEVICES",), num_proc=1))
    spark.stop()
"""


def test_ranks_see_the_gpus_that_spark_has_given_to_their_tasks(spark_cluster: Cluster, tmp_path: Path) -> None:
    """And no others, whatever the driver sees."""
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(ASKS_FOR_GPUS))
    path = str(Path(workbench.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(script), spark_cluster.url],
        env={**spark_cluster.env, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert any(f"ranks see ['{gpu}']" in done.stdout for gpu in (4, 7)), done.stdout + done.stderr[-3000:]
