"""What a column may hold: numbers, arrays or vectors of one length, and nothing that is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError


class DataFrameError(WorkbenchError, ValueError):
    """A DataFrame cannot be trained on; the text names the columns, and how many rows are wrong."""


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        kind: ``scalar``, ``array`` or ``vector``.
        dtype: numpy's name of its numbers.
        size: how many there are in a row.
    """

    kind: str
    dtype: str
    size: int


_NUMBERS = {
    "boolean": "bool",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
}


def names_of(features: Sequence[str] | None, labels: Sequence[str] | None, weight: str | None) -> list[str]:
    """The columns that a training needs, each once.

    Raises:
        DataFrameError: none were named.
    """
    if not features or not labels:
        raise DataFrameError("feature_cols= and label_cols= choose the columns for training: both are needed.")
    return list(dict.fromkeys([*features, *labels, *([weight] if weight else [])]))


def kinds(df: Any, names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By name the kind and the dtype of these columns, see :class:`Column`.

    Raises:
        DataFrameError: one is missing, or holds no numbers.
    """
    if missing := [name for name in names if name not in df.columns]:
        raise DataFrameError(f"The DataFrame has no column {', '.join(missing)}; it has {', '.join(df.columns)}.")
    return {name: _type(df, name) for name in names}


def flat(df: Any, name: str) -> Any:
    """A column as Spark's expression, a vector as an array of numbers."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    cell = F.col(quoted(name))
    if _type(df, name)[0] != "vector":
        return cell
    return F.when(cell.isNotNull(), vector_to_array(cell)).alias(name)


def dense(df: Any, names: Sequence[str]) -> Any:
    """The DataFrame with these columns alone, and vectors as arrays."""
    return df.select([flat(df, name) for name in names])


def inspect(df: Any, found: Mapping[str, tuple[str, str]]) -> tuple[dict[str, Column], int]:
    """Look at every row once.

    Args:
        df: made by :func:`dense`.
        found: made by :func:`kinds`.

    Returns:
        By name what each column holds, and how many rows there are.

    Raises:
        DataFrameError: a column holds nulls, or arrays of several lengths.
    """
    from pyspark.sql import functions as F

    questions = [F.count(F.lit(1)).alias("rows")]
    for i, (name, (kind, _)) in enumerate(found.items()):
        cell = F.col(quoted(name))
        questions.append(F.count(F.when(cell.isNull(), 1)).alias(f"null{i}"))
        if kind != "scalar":
            size, hole = F.when(cell.isNotNull(), F.size(cell)), F.exists(cell, lambda each: each.isNull())
            questions += [F.min(size).alias(f"min{i}"), F.max(size).alias(f"max{i}")]
            questions += [F.mode(size).alias(f"mode{i}"), F.count(F.when(hole, 1)).alias(f"hole{i}")]
    row = df.agg(*questions).first().asDict()
    wrong, columns = list[str](), dict[str, Column]()
    for i, (name, (kind, dtype)) in enumerate(found.items()):
        least, most, usual = (row.get(f"{each}{i}", 1) for each in ("min", "max", "mode"))
        if row[f"null{i}"]:
            wrong.append(f"{name} is null in {row[f'null{i}']} of {row['rows']} rows")
        if row.get(f"hole{i}"):
            wrong.append(f"{name} has a null within its array in {row[f'hole{i}']} of {row['rows']} rows")
        if least != most:
            odd = df.filter(F.size(F.col(quoted(name))) != usual).count()
            wrong.append(f"{name} has {least} to {most} numbers: other than {usual} in {odd} of {row['rows']} rows")
        columns[name] = Column(kind, dtype, int(most or 0))
    if wrong:
        raise DataFrameError(
            f"The DataFrame cannot be trained on: {'; '.join(wrong)}. Fill or drop such rows first (df.na, df.filter)."
        )
    return columns, int(row["rows"])


def _type(df: Any, name: str) -> tuple[str, str]:
    found = df.schema[name].dataType
    if type(found).__name__ == "VectorUDT":
        return "vector", "float64"
    kind, element = ("array", found.elementType) if found.typeName() == "array" else ("scalar", found)
    if element.typeName() in _NUMBERS:
        return kind, _NUMBERS[element.typeName()]
    raise DataFrameError(
        f"The column {name} is of type {found.simpleString()}. A model takes numbers: a numeric or boolean type, "
        "arrays of these, or vectors. pyspark.ml.feature can convert it, for example with StringIndexer or "
        "VectorAssembler."
    )


def quoted(name: str) -> str:
    """A column's name as Spark's expressions have it, where it has dots."""
    return "`" + name.replace("`", "``") + "`"
