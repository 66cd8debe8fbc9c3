"""The verbs on values, the way Keras' scripts use them, and the loading of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from workbench.api import Average, ReduceOp
from workbench.keras.backend import broadcast_variables
from workbench.keras.compression import Compression
from workbench.keras.optimizer import DistributedOptimizer, is_distributed
from workbench.runtime.messages import Kind
from workbench.training.calls import Call, choose_op
from workbench.training.compression import Compressor


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Compressor = Compression.none,
) -> Any:
    """Reduce a value over all ranks, outside of graphs.

    Args:
        value: a number, an array, a tensor or a variable.
        name, op, average, prescale_factor, postscale_factor: see :mod:`workbench.api`.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.

    Returns:
        A numpy array.

    Example:
        >>> import workbench.keras as hvd
        >>> hvd.init()
        >>> hvd.allreduce(2.0, op=hvd.Sum)
        array(2.)
        >>> hvd.shutdown()
    """
    array = _array(value)
    call = Call(Kind.ALLREDUCE, name, choose_op(op, average), prescale_factor, postscale_factor)
    if compression is Compression.none:
        return call([array])[0]
    small, ctx = compression.compress(keras.ops.convert_to_tensor(array))
    reduced = call([np.asarray(keras.ops.convert_to_numpy(small))])[0]
    return _array(compression.decompress(keras.ops.convert_to_tensor(reduced), ctx))


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' values, one below the other, as a numpy array."""
    return Call(Kind.ALLGATHER, name)([_array(value)])[0]


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's value, as a numpy array."""
    return Call(Kind.BROADCAST, name, root=root_rank)([_array(value)])[0]


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Any:
    """This rank's rows of the reduced value, as a numpy array."""
    return Call(Kind.REDUCESCATTER, name, op)([_array(value)])[0]


def broadcast_global_variables(root_rank: int) -> None:
    """Keras 3 has no list of global variables: this says what to use instead.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        "Keras 3 keeps no list of global variables. Use callbacks.BroadcastGlobalVariablesCallback("
        f"{root_rank}) in fit(), or broadcast_variables(model.weights, {root_rank}) in a loop of your own."
    )


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Compressor = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model as ``keras.models.load_model`` does, its optimizer with its state, and make that a distributed one.

    Args:
        filepath: of a model that was saved with or without the workbench.
        custom_optimizers: classes of optimizers that are not Keras' own.
        custom_objects: as Keras has them.
        compression: of the DistributedOptimizer.
        legacy_opts: taken for the sake of scripts that give it.
    """
    custom = {each.__name__: each for each in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=custom)
    if getattr(model, "optimizer", None) is not None and not is_distributed(model.optimizer):
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
        if keras.backend.backend() == "tensorflow":
            model.jit_compile = False
    return model


def _array(value: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(value)) if not isinstance(value, (int, float)) else np.asarray(value)


__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "load_model",
    "reducescatter",
]
