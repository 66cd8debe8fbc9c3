"""What Spark costs: the start of ranks in its tasks, and the way of a DataFrame to them.

    python benchmarks/spark_start.py --master spark://node:7077 --num-proc 4

Prints the seconds of: the session; the first ``workbench.spark.run``, which starts Spark's Python workers, too; later
ones, their median; ``workbench.run`` of the same function, on this machine, without Spark; and ``TorchEstimator.fit``
of one epoch, with the part of it that writes and looks at the data.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import workbench
import workbench.spark
from workbench.spark.common.backend import SparkBackend
from workbench.spark.common.data import written
from workbench.spark.common.store import Store
from workbench.spark.torch import TorchEstimator

LATER = 5


def start() -> int:
    """The least that a rank does."""
    workbench.init()
    return workbench.rank()


def seconds(what: Callable[[], Any]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    what()
    return time.perf_counter() - begun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", default="local[2]", help="of Spark")
    parser.add_argument("--num-proc", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--work-dir", help="of the store; on all nodes")
    args = parser.parse_args()
    from pyspark.sql import SparkSession

    found: list[Any] = []
    n = args.num_proc
    print(f"session                   {seconds(lambda: found.append(_session(SparkSession, args.master))):7.2f} s")
    print(f"first run of {n} ranks      {seconds(lambda: workbench.spark.run(start, num_proc=n)):7.2f} s")
    later = [seconds(lambda: workbench.spark.run(start, num_proc=n)) for _ in range(LATER)]
    print(f"later runs                {statistics.median(later):7.2f} s")
    plain = [seconds(lambda: workbench.run(start, np=n, use_gloo=True)) for _ in range(LATER)]
    print(f"workbench.run, no Spark   {statistics.median(plain):7.2f} s")
    (spark,) = found
    columns = [f"array_repeat(rand({i}), 196)" for i in range(4)]
    df = spark.range(args.rows).selectExpr(f"concat({', '.join(columns)}) AS x", "id % 10 AS y").cache()
    df.count()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(args.work_dir or folder)

        def write() -> None:
            with written(df, ["x", "y"], store, n, 2):
                pass

        model = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        estimator = TorchEstimator(
            backend=SparkBackend(n),
            store=store,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            loss=lambda output, label: torch.nn.functional.cross_entropy(output, label.long()),
            feature_cols=["x"],
            label_cols=["y"],
            batch_size=64,
            partitions_per_process=2,
            verbose=0,
        )
        print(f"data written and seen     {seconds(write):7.2f} s  ({args.rows} rows of 784 doubles)")
        print(f"fit of one epoch, all     {seconds(lambda: estimator.fit(df)):7.2f} s")
    spark.stop()


def _session(kind: Any, master: str) -> Any:
    spark = kind.builder.master(master).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    main()
