"""The verbs on values, the way Keras' scripts use them, and the loading of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.core.messages import Kind
from workbench.job.api import Average, ReduceOp
from workbench.keras.backend import Compression, broadcast_variables
from workbench.keras.flavour import LEGACY, handed_back, keras, number_or_array
from workbench.keras.optimizer import DistributedOptimizer, is_distributed
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
        name, op, average, prescale_factor, postscale_factor: see :mod:`workbench.job.api`.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.

    Returns:
        A numpy array; from Keras 2, unless in a graph of TensorFlow 1, a tensor.

    Example:
        >>> import workbench.keras as hvd
        >>> hvd.init()
        >>> hvd.allreduce(2.0, op=hvd.Sum)
        array(2.)
        >>> hvd.shutdown()
    """
    array = number_or_array(value)
    call = Call(Kind.ALLREDUCE, name, choose_op(op, average), prescale_factor, postscale_factor)
    if compression is Compression.none:
        return handed_back(call([array])[0])
    small, ctx = compression.compress(_tensor(array))
    reduced = call([number_or_array(small)])[0]
    return handed_back(number_or_array(compression.decompress(_tensor(reduced), ctx)))


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' values, one below the other; what is returned, see :func:`allreduce`."""
    return handed_back(Call(Kind.ALLGATHER, name)([number_or_array(value)])[0])


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's value; what is returned, see :func:`allreduce`."""
    return handed_back(Call(Kind.BROADCAST, name, root=root_rank)([number_or_array(value)])[0])


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Any:
    """This rank's rows of the reduced value; what is returned, see :func:`allreduce`."""
    return handed_back(Call(Kind.REDUCESCATTER, name, op)([number_or_array(value)])[0])


def broadcast_global_variables(root_rank: int) -> None:
    """Keras 2 in a graph of TensorFlow 1: the root's values of all global variables, in Keras' session.

    Raises:
        RuntimeError: in Keras 3, and in eager mode, which keep no list of global variables.
    """
    if LEGACY:
        import tensorflow as tf

        if not tf.executing_eagerly():
            from workbench.tf.functions import broadcast_global_variables as operation

            tf.compat.v1.keras.backend.get_session().run(operation(root_rank))
            return
    raise RuntimeError(
        "broadcast_global_variables() does not support eager execution: there is no list of global variables. Use "
        f"callbacks.BroadcastGlobalVariablesCallback({root_rank}) in fit(), or "
        f"broadcast_variables(model.weights, {root_rank}) in a loop of your own."
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
        legacy_opts: for a file from Keras 2: its optimizer becomes one of ``keras.optimizers.legacy``.
    """
    old = (
        {name.lower(): each for name, each in vars(keras.optimizers.legacy).items() if isinstance(each, type)}
        if (legacy_opts and LEGACY)
        else {}
    )
    custom = old | {each.__name__: each for each in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=custom)
    if getattr(model, "optimizer", None) is not None and not is_distributed(model.optimizer):
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
        if keras.backend.backend() == "tensorflow" and not LEGACY:
            model.jit_compile = False
    return model


def _tensor(array: Any) -> Any:
    if not LEGACY:
        return keras.ops.convert_to_tensor(array)
    import tensorflow as tf

    return tf.convert_to_tensor(array)


__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "load_model",
    "reducescatter",
]
