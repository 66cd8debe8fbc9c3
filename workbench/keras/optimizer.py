"""DistributedOptimizer for the optimizers of Keras 3, on TensorFlow, torch and JAX, and for those of Keras 2.

Where the gradients are reduced differs between the two: :mod:`workbench.keras.keras3`, :mod:`workbench.keras.keras2`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from workbench.core.messages import Progress
from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.keras.backend import Compression, bridge, forget_steps
from workbench.keras.flavour import LEGACY, keras, number_or_array
from workbench.keras.wrapper import Distributed as Distributed
from workbench.keras.wrapper import is_distributed as is_distributed
from workbench.training.bridge import TensorReducer
from workbench.training.compression import Compressor
from workbench.training.progress import hyperparameters

_HINTS = {
    False: "For optimizers of tf_keras set TF_USE_LEGACY_KERAS=1 before anything is imported; without that variable "
    "`keras` is used.",
    True: "TF_USE_LEGACY_KERAS=1 is set, so `tf_keras` is used: take optimizers from it (tf.keras or tf_keras) "
    "or unset that variable before anything is imported to train with `keras`.",
}


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap a Keras optimizer so that every rank steps with the gradients of all: in ``fit`` and in custom loops.

    Args:
        optimizer: any optimizer of Keras, used from now on through what is returned only.
        name, device_dense, device_sparse: ignored; accepted for Horovod compatibility.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        sparse_as_dense: turn TensorFlow's IndexedSlices into dense gradients first; otherwise rows are gathered.
        gradient_predivide_factor: divide by it before the sum and multiply after.
        op: Average (default), Sum or Adasum.
        backward_passes_per_step: add up the gradients of so many batches on this rank before they are sent and the
            optimizer steps. (Keras' own ``gradient_accumulation_steps`` works as well, but communicates each time.)
        average_aggregated_gradients: divide by ``backward_passes_per_step``.
        num_groups, groups: ignored; accepted for Horovod compatibility: all gradients are sent together anyway.
        process_set: the ranks to average over.
        scale_local_gradients: divide gradients that stay local by the number of ranks.

    Raises:
        ValueError: no optimizer of this Keras, or options that do not go together.

    Example:
        >>> import workbench.keras as hvd
        >>> hvd.init()
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        >>> isinstance(optimizer, keras.optimizers.SGD)
        True
        >>> hvd.shutdown()
    """
    options: dict[str, Any] = {
        "op": op,
        "predivide": gradient_predivide_factor,
        "passes": backward_passes_per_step,
        "mean": average_aggregated_gradients,
        "process_set": process_set,
    }
    return distribute(
        optimizer, TensorReducer(bridge(), compression, sparse_as_dense, scale_local_gradients, **options)
    )


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A :func:`DistributedOptimizer` that leaves some layers alone: each rank trains its own.

    Args:
        local_layers: a Keras layer, or several; the other arguments as there.
    """
    wrapped = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    layers = local_layers if isinstance(local_layers, (list, tuple, set)) else filter(None, [local_layers])
    wrapped._local_layers.extend(layers)
    return wrapped


def distribute(optimizer: Any, reducer: TensorReducer) -> Distributed:
    """Wrap an optimizer, which may be wrapped already, by a notebook's cell that is run again.

    Raises:
        ValueError: no optimizer of the Keras that this process uses.
    """
    if is_distributed(optimizer):
        reducer.steps = optimizer._reducer.steps  # the weights are the same
        optimizer = optimizer._inner
    families = (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer) if LEGACY else keras.optimizers.Optimizer
    if not isinstance(optimizer, families):
        raise ValueError(
            f"DistributedOptimizer needs an optimizer of Keras {keras.__version__} (or of tf.compat.v1.train), not "
            f"{type(optimizer)}. {_HINTS[keras.__name__ == 'tf_keras']}"
        )
    reducer.numbers = partial(_numbers, optimizer)
    if LEGACY:
        from workbench.keras.keras2 import Distributed2

        return Distributed2(optimizer, reducer)
    from workbench.keras.keras3 import Distributed3, keep_xla_away

    keep_xla_away()
    forget_steps()
    return Distributed3(optimizer, reducer)


def _numbers(optimizer: Any) -> Progress:
    """What must be equal on all ranks; while JAX's trainer runs, the learning rate is not in its variable."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # a LossScaleOptimizer has it
    numbers = {name: value for name, value in vars(optimizer).items() if not name.startswith("_")}
    if not LEGACY and isinstance(optimizer._learning_rate, keras.Variable) and keras.backend.backend() != "jax":
        numbers["learning_rate"] = number_or_array(optimizer._learning_rate).item()
    return hyperparameters([numbers])
