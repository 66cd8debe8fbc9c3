"""Keras models and their weights as bytes, in Keras' own formats, in which no code is run when they are read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.errors import WorkbenchError
from workbench.keras.flavour import LEGACY, keras, number_or_array

_MODEL, _WEIGHTS = "model.keras", "model.weights.h5"


def model_bytes(model: Any) -> bytes:
    """A model without its optimizer, as a ``.keras`` file.

    Raises:
        WorkbenchError: it has not been built, or Keras cannot save it.
    """
    if not model.built:
        raise WorkbenchError("The model has no weights yet: begin it with keras.Input(shape), or call it once.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _MODEL)
        model.save(path, **({} if LEGACY else {"include_optimizer": False}))  # Keras 2 has no choice in this format
        return path.read_bytes()


def model_of(content: bytes, custom_objects: Mapping[str, Any] | None) -> Any:
    """The model, not compiled.

    Args:
        content: made by :func:`model_bytes`.
        custom_objects: the user's own classes and functions by name. A ``Lambda`` layer's code is refused by Keras.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _MODEL)
        path.write_bytes(content)
        return keras.saving.load_model(path, custom_objects=dict(custom_objects or {}), compile=False, safe_mode=True)


def weights_bytes(model: Any) -> bytes:
    """A model's weights and its optimizer's state, as a ``.weights.h5`` file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _WEIGHTS)
        model.save_weights(path)
        return path.read_bytes()


def load_weights(model: Any, content: bytes) -> None:
    """Take over weights and the state of the optimizer, which is compiled in and built."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _WEIGHTS)
        path.write_bytes(content)
        model.load_weights(path)


def scale_rate(optimizer: Any, factor: float) -> None:
    """Multiply the learning rate. One that is a schedule stays as it is."""
    if not isinstance(optimizer.get_config()["learning_rate"], dict):
        rate = float(number_or_array(optimizer.learning_rate))
        optimizer.learning_rate = rate * factor


def shaped(values: npt.NDArray[Any], shape: Sequence[int | None]) -> npt.NDArray[Any]:
    """Samples in a tensor's shape, if they have as many numbers; else as they are.

    Example:
        >>> shaped(np.zeros((2, 4)), (None, 2, 2)).shape, shaped(np.zeros(2), (None, 10)).shape
        ((2, 2, 2), (2,))
    """
    wanted = [dim if dim is not None else -1 for dim in shape[1:]]
    if wanted.count(-1) > 1 or (-1 not in wanted and int(np.prod(wanted)) * len(values) != values.size):
        return values
    return values.reshape(len(values), *wanted)


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
