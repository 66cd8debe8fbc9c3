"""The verbs on values, the way Keras' scripts use them, and the loading of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.core.messages import Kind
from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet, global_process_set
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
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a value over all ranks, outside of graphs.

    Args:
        value: a number, an array, a tensor or a variable.
        name, op, average, prescale_factor, postscale_factor, process_set: see :mod:`workbench.job.api`.
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
    chosen = choose_op(op, average)
    call = Call(Kind.ALLREDUCE, name, chosen, prescale_factor, postscale_factor, process_set=process_set)
    return _run(call, [value], compression)[0]


def grouped_allreduce(
    values: Sequence[Any],
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As :func:`allreduce` for several values; none starts before all are ready on every rank."""
    chosen = choose_op(op, average)
    call = Call(Kind.ALLREDUCE, name, chosen, prescale_factor, postscale_factor, process_set=process_set)
    return _run(call, values, compression)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """All ranks' values, one below the other; what is returned, see :func:`allreduce`."""
    return _run(Call(Kind.ALLGATHER, name, process_set=process_set), [value])[0]


def grouped_allgather(
    values: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """As :func:`allgather` for several values."""
    return _run(Call(Kind.ALLGATHER, name, process_set=process_set), values)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The root's value; what is returned, see :func:`allreduce`."""
    return _run(Call(Kind.BROADCAST, name, root=root_rank, process_set=process_set), [value])[0]


def alltoall(
    value: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[i]`` rows to rank i, by default equally many.

    Returns:
        The rows received, see :func:`allreduce`; with ``splits`` a pair of these and the number from each rank.
    """
    rows = None if splits is None else tuple(int(each) for each in splits)
    made = _run(Call(Kind.ALLTOALL, name, splits=rows, process_set=process_set), [value])
    return made[0] if splits is None else (made[0], made[1])


def reducescatter(
    value: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the reduced value; what is returned, see :func:`allreduce`."""
    return grouped_reducescatter([value], name, op, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(
    values: Sequence[Any],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """As :func:`reducescatter` for several values."""
    return _run(Call(Kind.REDUCESCATTER, name, op, prescale_factor, postscale_factor, process_set=process_set), values)


def _run(call: Call, values: Sequence[Any], compression: Compressor = Compression.none) -> list[Any]:
    arrays = [number_or_array(each) for each in values]
    if compression is Compression.none:
        return [handed_back(each) for each in call(arrays)] if arrays else []
    small = [compression.compress(_tensor(each)) for each in arrays]
    made = call([number_or_array(each) for each, _ in small]) if small else []
    wide = [compression.decompress(_tensor(each), ctx) for each, (_, ctx) in zip(made, small, strict=True)]
    return [handed_back(number_or_array(each)) for each in wide]


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
        f"callbacks.BroadcastGlobalVariablesCallback({root_rank}) in fit(), or broadcast_variables(model.weights, "
        f"{root_rank}) in your own loop."
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
    "alltoall",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "load_model",
    "reducescatter",
]
