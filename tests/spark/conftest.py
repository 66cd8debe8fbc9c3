"""One standalone cluster and one session for all tests that need Spark."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from spark_cluster import Cluster, cluster, missing


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers of two cores."""
    if why := missing():
        pytest.skip(why)
    with cluster(tmp_path_factory.mktemp("spark") / "cluster") as found:
        yield found


@pytest.fixture(scope="session")
def spark(spark_cluster: Cluster) -> Iterator[Any]:
    """A session of this process there."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark has its own about versions of pandas
        for name, text in spark_cluster.env.items():
            patch.setenv(name, text)
        builder = SparkSession.builder.master(spark_cluster.url).appName("tests")
        found = builder.config("spark.cores.max", 4).getOrCreate()  # a second application has cores left
        found.sparkContext.setLogLevel("ERROR")
        yield found
        found.stop()
