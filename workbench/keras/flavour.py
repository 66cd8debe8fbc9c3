"""Which Keras this process uses, and what its versions do each in its own way.

``keras`` is the one that ``import keras`` finds: Keras 3 on TensorFlow, torch or JAX, or Keras 2 beside TensorFlow
2.15. Where TF_USE_LEGACY_KERAS=1 makes ``tf.keras`` mean ``tf_keras``, Keras 2 for later TensorFlow, it is that one.
Keras 2 has two families of optimizers, those of Keras 2.11 and, in ``keras.optimizers.legacy``, the ones before.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from workbench import config
from workbench.core.backend.base import Array

if not config.legacy_keras() or find_spec("tf_keras") is None:  # TensorFlow, too, falls back to `keras`
    import keras as keras
else:
    import tf_keras as keras

LEGACY: bool = keras.__version__.startswith("2.")


def number_or_array(value: Any) -> Any:
    """A number, list, tensor or variable on the host, as an array."""
    if not LEGACY:
        return np.asarray(value if isinstance(value, (int, float)) else keras.ops.convert_to_numpy(value))
    value = keras.backend.get_value(value)
    if not isinstance(value, (int, float, list, tuple)):
        return np.asarray(value)
    import tensorflow as tf

    return tf.make_ndarray(tf.make_tensor_proto(value))  # Python's numbers are TensorFlow's float32 and int32


def handed_back(array: Array) -> Any:
    """A result as scripts for this Keras expect it: an array, and from Keras 2 a tensor wherever it can be one."""
    if not LEGACY:
        return array
    import tensorflow as tf

    return tf.convert_to_tensor(array) if tf.executing_eagerly() else array


def values_of(variables: Sequence[Any]) -> list[Array]:
    """Copies of their values."""
    if LEGACY:  # in a graph of TensorFlow 1 from Keras' session
        return [np.array(each) for each in keras.backend.batch_get_value(list(variables))]
    return [np.array(keras.ops.convert_to_numpy(each.value)) for each in variables]


def assign(variables: Sequence[Any], values: Sequence[Array]) -> None:
    """Set them."""
    if LEGACY:
        keras.backend.batch_set_value(list(zip(variables, values, strict=True)))
        return
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def multiply(variables: Sequence[Any], factor: float) -> None:
    """In place."""
    if LEGACY:
        assign(variables, [value * factor for value in values_of(variables)])
        return
    for variable in variables:
        variable.assign(variable * factor)


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Let it make its variables for the model's, unless it has them."""
    if is_legacy(optimizer):
        optimizer._create_all_weights(list(variables))  # once for each variable
    elif not _is_built(optimizer):
        optimizer.build(list(variables))


def variables_of(optimizer: Any) -> list[Any]:
    """The optimizer's variables; none before it is built."""
    if is_legacy(optimizer):
        return list(optimizer.variables())
    return list(optimizer.variables) if _is_built(optimizer) else []


def _is_built(optimizer: Any) -> bool:
    if not LEGACY:
        return bool(optimizer.built)
    return bool(getattr(getattr(optimizer, "inner_optimizer", optimizer), "_built", False))


def is_legacy(optimizer: Any) -> bool:
    """Is it of ``keras.optimizers.legacy``?"""
    return LEGACY and isinstance(optimizer, keras.optimizers.legacy.Optimizer)


def velocities_of(optimizer: Any) -> list[Any]:
    """Where SGD with momentum holds the learning rate of earlier steps; empty for others."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    families = (keras.optimizers, keras.optimizers.legacy) if LEGACY else (keras.optimizers,)
    if not any(isinstance(inner, each.SGD) for each in families) or not number_or_array(inner.momentum):
        return []
    if not is_legacy(inner):
        return list(getattr(inner, "momentums", []))
    return [slots["momentum"] for slots in inner._slots.values() if "momentum" in slots]
