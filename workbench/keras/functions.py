"""How the verbs are run on values, outside of graphs, and the loading of models. The verbs are in ``verbs.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.job.calls import Call
from workbench.keras.backend import Compression, broadcast_variables
from workbench.keras.flavour import LEGACY, handed_back, keras, number_or_array
from workbench.keras.optimizer import DistributedOptimizer, is_distributed
from workbench.training.compression import Compressor


def run(call: Call, values: Sequence[Any], compression: Compressor = Compression.none) -> list[Any]:
    """A verb on values: arrays of numpy's, or what this Keras has for them."""
    arrays = [number_or_array(each) for each in values]
    if compression is Compression.none:
        return [handed_back(each) for each in call(arrays)] if arrays else []
    small = [compression.compress(_tensor(each)) for each in arrays]
    made = call([number_or_array(each) for each, _ in small]) if small else []
    wide = [compression.decompress(_tensor(each), ctx) for each, (_, ctx) in zip(made, small, strict=True)]
    return [handed_back(number_or_array(each)) for each in wide]


def exchange(call: Call, value: Any) -> Any:
    """Alltoall: the rows received; with splits a pair of these and the number received from each rank."""
    rows, counts = run(call, [value])
    return rows if call.splits is None else (rows, counts)


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


__all__ = ["broadcast_global_variables", "broadcast_variables", "load_model"]
