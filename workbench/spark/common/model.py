"""A trained model as a stage of a Spark ML pipeline: it adds a column of predictions for each label."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas
from pyspark.ml import Model

from workbench.spark.common.columns import Column, DataFrameError, flat, kinds
from workbench.spark.common.params import ModelParams
from workbench.spark.shipping import shipped

_PREDICTED = "__workbench_predicted"


class HorovodModel(Model, ModelParams, metaclass=abc.ABCMeta):  # type: ignore[misc]  # untyped
    """Adds ``<label>__output`` to a DataFrame, or the columns that ``setOutputCols`` names.

    An output of one number is of the label's type, rounded if that is whole. Others are vectors.
    """

    def transform(self, dataset: Any, params: Any = None) -> Any:
        """The DataFrame with predictions.

        Args:
            dataset: has the columns that the model was trained on; the labels may be missing.
            params: replace parameters, for this call.

        Raises:
            DataFrameError: a feature is missing, or of another type.
        """
        return super().transform(dataset, params)

    @abc.abstractmethod
    def _predictor(self) -> tuple[str, tuple[Any, ...]]:
        """A module with ``predictor``, and its arguments: called in a task, it gives a function of arrays."""

    @abc.abstractmethod
    def _sizes(self) -> list[int]:
        """How many numbers each output has for a sample."""

    def _transform(self, dataset: Any) -> Any:
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql import functions as F

        features: list[str] = self.getFeatureColumns()
        labels: list[str] = self.getLabelColumns()
        metadata: Mapping[str, Column] = self.getOrDefault("_metadata")
        outputs = self.getOutputCols() if self.isDefined("outputCols") else [f"{label}__output" for label in labels]
        kinds(dataset, features)
        module, args = self._predictor()
        ours = shipped(__name__, "predict", module, args, [metadata[name] for name in features], len(labels))
        schema = ", ".join(f"o{i} array<double>" for i in range(len(labels)))
        udf = F.pandas_udf(_typed(ours), schema)
        inputs = F.struct(*[flat(dataset, name).alias(f"i{i}") for i, name in enumerate(features)])
        found = dataset.withColumn(_PREDICTED, udf(inputs))
        for i, (label, output, size) in enumerate(zip(labels, outputs, self._sizes(), strict=True)):
            cell, about = F.col(_PREDICTED).getField(f"o{i}"), metadata[label]
            if about.kind == "vector" or size > 1:
                found = found.withColumn(output, array_to_vector(cell))
            else:
                one, integer = cell.getItem(0), about.dtype.startswith(("int", "bool"))
                found = found.withColumn(output, (F.round(one) if integer else one).cast(_TYPES[about.dtype]))
        return found.drop(_PREDICTED)


_TYPES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
}


def _typed(ours: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """With the hints by which Spark tells what a function takes."""

    def predicted(frames: Iterator[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
        return ours(frames)  # type: ignore[no-any-return]

    return predicted


def predict(
    module: str, args: tuple[Any, ...], features: list[Column], outputs: int, frames: Iterator[Any]
) -> Iterator[Any]:
    """In a task: a model's outputs, for frames of its features."""
    from importlib import import_module

    model = import_module(module).predictor(*args)
    for frame in frames:
        inputs = [_array(frame.iloc[:, i], about) for i, about in enumerate(features)]
        found = model(inputs)
        if len(found) != outputs:
            raise DataFrameError(f"The model has {len(found)} outputs for {outputs} labels.")
        rows = {f"o{i}": list(np.asarray(each, np.float64).reshape(len(frame), -1)) for i, each in enumerate(found)}
        yield pandas.DataFrame(rows)


def _array(column: Any, about: Column) -> npt.NDArray[Any]:
    if missing := int(column.isna().sum()):
        raise DataFrameError(f"A feature is null in {missing} rows: fill or drop such rows first (df.na, df.filter).")
    if about.kind == "scalar":
        return np.asarray(column.to_numpy(), about.dtype)
    values = np.stack([np.asarray(each) for each in column])
    if values.shape[1] != about.size:
        raise DataFrameError(f"A feature has {values.shape[1]} numbers; the model was trained with {about.size}.")
    return values
