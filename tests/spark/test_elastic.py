"""``workbench.spark.run_elastic``: Spark loses a task, and the job goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from executors import counting, eventually, with_variable
from spark_cluster import Cluster

import workbench.spark
from workbench.errors import LaunchError

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # Spark's own, about versions of pandas
]

MARK = "WORKBENCH_TEST_OF_ELASTIC_SPARK"


def test_a_lost_task_is_replaced(spark: Any, spark_cluster: Cluster, tmp_path: Path) -> None:
    """The others go on; Spark starts the task again, its rank joins, and no step is lost."""

    def kill() -> None:
        assert eventually(lambda: bool(list(tmp_path.glob("step.5.size.*"))), 120.0)
        workers, agents = spark_cluster.executors(), spark_cluster.agents()
        next(each for each in workers if each not in agents).kill()
        time.sleep(1.0)  # the launcher looks for slots four times a second, and Spark takes longer to start a task
        (tmp_path / "go").touch()
        assert eventually(lambda: len(spark_cluster.executors()) == len(workers), 60.0)

    killer = threading.Thread(target=kill)
    killer.start()
    found = workbench.spark.run_elastic(
        counting, (str(tmp_path), 600), num_proc=3, min_num_proc=1, max_num_proc=3, env={MARK: str(tmp_path)}
    )
    killer.join()
    assert [rank for rank, _, _ in found] == list(range(len(found)))
    assert {total for _, _, total in found} == {600.0}
    sizes = {int(each.name.split(".")[-1]) for each in tmp_path.glob("step.*")}
    assert {2, 3} <= sizes
    assert eventually(lambda: with_variable(MARK, str(tmp_path)) == [], 30.0)


def test_the_older_names_are_known(spark: Any) -> None:
    """With a warning; and what contradicts itself is refused."""
    with (
        pytest.raises(LaunchError, match="min_num_proc=3, num_proc=2, max_num_proc=2"),
        pytest.warns(DeprecationWarning, match="min_np is deprecated, use min_num_proc instead"),
    ):
        workbench.spark.run_elastic(print, num_proc=2, min_np=3)
