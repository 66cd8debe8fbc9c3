"""``workbench.spark.run_elastic``: Spark loses a task, and the job goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from executors import counting, with_variable
from running import eventually
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

    def steps(size: int) -> list[int]:
        return [int(each.name.split(".")[1]) for each in tmp_path.glob(f"step.*.size.{size}")]

    def kill() -> None:
        try:
            assert eventually(lambda: 5 in steps(3), 120.0)
            victim = next(each for each in spark_cluster.executors() if each not in spark_cluster.agents())
            with spark_cluster.no_new_tasks():  # else Spark may have a new task before the ranks come to a commit
                victim.kill()
                (tmp_path / "go").touch()
                assert eventually(lambda: bool(steps(2)), 60.0)
            assert eventually(lambda: max(steps(3)) > max(steps(2)), 60.0)
        finally:
            for name in ("go", "enough"):
                (tmp_path / name).touch()

    killer = threading.Thread(target=kill)
    killer.start()
    found = workbench.spark.run_elastic(
        counting, (str(tmp_path), 100_000), num_proc=3, min_num_proc=1, max_num_proc=3, env={MARK: str(tmp_path)}
    )
    killer.join()
    assert steps(2)
    assert found == [(rank, 3, float(max(steps(3)))) for rank in range(3)]
    assert eventually(lambda: with_variable(MARK, str(tmp_path)) == [], 30.0)


def test_the_older_names_are_known(spark: Any) -> None:
    """With a warning; and what contradicts itself is refused."""
    with (
        pytest.raises(LaunchError, match="min_num_proc=3, num_proc=2, max_num_proc=2"),
        pytest.warns(DeprecationWarning, match="min_np is deprecated, use min_num_proc instead"),
    ):
        workbench.spark.run_elastic(print, num_proc=2, min_np=3)
