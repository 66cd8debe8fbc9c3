"""A torch model's outputs for arrays, in the tasks of ``TorchModel.transform``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pickle import loads
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workbench.errors import WorkbenchError
from workbench.spark.common.columns import Column

Arrays = Sequence[npt.NDArray[Any]]


class ShapeError(WorkbenchError, ValueError):
    """An input shape does not go with a column."""


def predictor(
    content: bytes, shapes: Sequence[Sequence[int]], dtype: str
) -> Callable[[Arrays], list[npt.NDArray[Any]]]:
    """A function from features to outputs.

    Args:
        content: the model, pickled by the driver; it came inside Spark's own task.
        shapes: of the features, with -1 for samples.
        dtype: of the inputs.
    """
    model = loads(content)
    model.eval()

    def predict(features: Arrays) -> list[npt.NDArray[Any]]:
        kind = getattr(torch, dtype)
        inputs = [torch.as_tensor(each).to(kind).reshape(*shape) for each, shape in zip(features, shapes, strict=True)]
        with torch.no_grad():
            found = model(*inputs)
        outputs = list(found) if isinstance(found, (list, tuple)) else [found]
        return [np.asarray(each.double()) for each in outputs]

    return predict


def dtype_of(model: Any) -> str:
    """The type of a model's floats, by torch's name.

    Example:
        >>> dtype_of(torch.nn.Linear(1, 1).double()), dtype_of(torch.nn.Flatten())
        ('float64', 'float32')
    """
    found = [each.dtype for each in model.parameters() if each.is_floating_point()]
    return str(found[0] if found else torch.get_default_dtype()).removeprefix("torch.")


def shapes_of(
    given: Sequence[Sequence[int]] | None, features: Sequence[str], columns: Mapping[str, Column]
) -> list[list[int]]:
    """The shape of each feature.

    Raises:
        ShapeError: there are more or fewer than features, or a column has too many or too few numbers for one.

    Example:
        >>> shapes_of(None, ["pixels"], {"pixels": Column("array", "float32", 784)})
        [[-1, 784]]
    """
    shapes = [[-1, columns[name].size] for name in features] if given is None else [list(each) for each in given]
    if len(shapes) != len(features):
        raise ShapeError(f"input_shapes has {len(shapes)} shapes for the features {', '.join(features)}: one for each.")
    for name, shape in zip(features, shapes, strict=True):
        if int(np.prod(shape[1:])) != columns[name].size:
            raise ShapeError(f"input_shapes says {shape} for {name}, which has {columns[name].size} numbers in a row.")
    return shapes
