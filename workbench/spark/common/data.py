"""A DataFrame as Parquet in the store, for the time of a training."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.common.text import count
from workbench.spark.common.columns import Column, DataFrameError, dense, inspect, kinds, quoted
from workbench.spark.common.store import Store
from workbench.spark.session import first_line


@dataclass(frozen=True)
class TrainingData:
    """What is trained on.

    Args:
        train, val: folders with Parquet; ``val`` is "" without validation.
        train_rows, val_rows: how many samples are there.
        columns: what each column holds.
    """

    train: str
    val: str
    train_rows: int
    val_rows: int
    columns: Mapping[str, Column]


@contextlib.contextmanager
def written(
    df: Any,
    names: Sequence[str],
    store: Store,
    ranks: int,
    files_per_rank: int,
    validation: float | str | None = None,
    seed: int | None = None,
) -> Iterator[TrainingData]:
    """Write these columns of a DataFrame; they are removed at the end of the block.

    Args:
        df: what is to be trained on.
        names: the columns that are needed.
        store: where to.
        ranks, files_per_rank: so many files are written for so many ranks, in random order of the rows.
        validation: a share of the rows, or a column that is true or positive in those of validation.
        seed: of that share.

    Raises:
        DataFrameError: the columns cannot be trained on, or there are fewer rows than ranks.
        StoreError: there is no room, or the store cannot be written.
    """
    found, number = kinds(df, names), secrets.randbelow(1 << 31)
    train, val = store.get_train_data_path(number), store.get_val_data_path(number)
    parts = [dense(part, names) for part in _split(df, validation, seed)]
    try:
        for part, path in zip(parts, (train, val), strict=False):
            _write(part, store, path, max(1, ranks * files_per_rank))
        yield _described(df.sparkSession, store, [train, val][: len(parts)], found, ranks)
    finally:
        for path in (train, val):
            store.delete(path)


def there(
    spark: Any, names: Sequence[str], store: Store, ranks: int, validates: bool, number: int | None
) -> TrainingData:
    """Parquet that the user has written to the store's paths, with arrays in place of vectors.

    Raises:
        DataFrameError: it cannot be trained on.
        StoreError: there is none.
    """
    paths = [store.get_train_data_path(number)] + ([store.get_val_data_path(number)] if validates else [])
    for path in paths:
        if not store.is_parquet_dataset(path):
            raise store.error("read", path, FileNotFoundError("there are no Parquet files"))
    found = kinds(spark.read.parquet(store.spark_path(paths[0])), names)
    if vectors := [name for name, (kind, _) in found.items() if kind == "vector"]:
        raise DataFrameError(
            f"{paths[0]} has vectors in {', '.join(vectors)}: write them as arrays, by "
            "pyspark.ml.functions.vector_to_array."
        )
    return _described(spark, store, paths, found, ranks)


def _split(df: Any, validation: float | str | None, seed: int | None) -> list[Any]:
    from pyspark.sql import functions as F

    if validation is None or validation == 0:
        return [df]
    if isinstance(validation, str):
        kinds(df, [validation])
        chosen = F.coalesce(F.col(quoted(validation)).cast("double") > 0, F.lit(False))
        return [df.filter(~chosen), df.filter(chosen)]
    if not 0 <= validation < 1:
        raise DataFrameError(f"validation={validation}: a share of the rows is from 0 to 1, or a column's name.")
    return list(df.randomSplit([1.0 - validation, float(validation)], seed=seed))


def _write(part: Any, store: Store, path: str, files: int) -> None:
    try:
        part.repartition(files).write.mode("error").parquet(store.spark_path(path))
    except Exception as error:  # of py4j or Spark, whose classes differ by version
        raise store.error("written", path, OSError(_cause(error))) from error


def _cause(error: BaseException) -> str:
    """The line that says most: Spark wraps what a file system says into errors of its own."""
    lines = [line.strip().removeprefix("Caused by: ") for line in str(error).splitlines()]
    causes = [line for line in lines if "No space left" in line or "denied" in line or "Exception: " in line]
    return first_line(next((line for line in causes if "No space" in line or "denied" in line), (causes or lines)[-1]))


def _described(
    spark: Any, store: Store, paths: Sequence[str], found: Mapping[str, tuple[str, str]], ranks: int
) -> TrainingData:
    columns, rows = dict[str, Column](), list[int]()
    for path, what in zip(paths, ("to train with", "of validation"), strict=False):
        here, number = inspect(spark.read.parquet(store.spark_path(path)), found)
        if number < ranks:
            raise DataFrameError(f"{count(number, 'row')} {what} for {count(ranks, 'rank')}: each needs one.")
        if columns and here != columns:
            raise DataFrameError(f"The columns hold {columns} to train with, and {here} of validation.")
        columns = here
        rows.append(number)
    return TrainingData(paths[0], (*paths, "")[1], rows[0], (*rows, 0)[1], columns)
