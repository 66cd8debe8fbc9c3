"""A Keras model's outputs for arrays, in the tasks of ``KerasModel.transform``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.spark.keras.files import model_of, shaped


def predictor(
    content: bytes, custom_objects: Mapping[str, Any]
) -> Callable[[Sequence[npt.NDArray[Any]]], list[npt.NDArray[Any]]]:
    """A function from features to outputs.

    Args:
        content: the model, see :func:`workbench.spark.keras.files.model_bytes`.
        custom_objects: the user's own classes and functions by name.
    """
    model = model_of(content, custom_objects)

    def predict(features: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        inputs = [shaped(each, tensor.shape) for each, tensor in zip(features, model.inputs, strict=True)]
        found = model.predict_on_batch(inputs if len(inputs) > 1 else inputs[0])
        return [np.asarray(each) for each in (found if isinstance(found, (list, tuple)) else [found])]

    return predict
