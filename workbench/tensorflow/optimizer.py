"""DistributedOptimizer: for the optimizers of TensorFlow 1 here, for those of Keras in :mod:`workbench.keras`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.tf.functions import Aggregation
from workbench.tf.tensors import BRIDGE, Compression, as_it_is
from workbench.training.bridge import TensorReducer, names_among, names_of
from workbench.training.compression import Compressor


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer of ``tf.compat.v1.train`` or of Keras so that it steps with the gradients of all ranks.

    Args:
        optimizer: used from now on through what is returned only.
        name, use_locking: of the wrapper, for an optimizer of TensorFlow 1.
        device_dense, device_sparse: ignored; accepted for Horovod compatibility.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        sparse_as_dense: turn IndexedSlices into dense gradients first; otherwise all ranks' rows are gathered.
        backward_passes_per_step: add up so many gradients on this rank before they are sent and the optimizer steps.
        op: Average (default), Sum or Adasum.
        gradient_predivide_factor: divide by it before the sum and multiply after.
        average_aggregated_gradients: divide by ``backward_passes_per_step``.
        num_groups, groups: ignored; accepted for Horovod compatibility: all gradients are sent together anyway.
        process_set: the ranks to average over.
        scale_local_gradients: see :class:`~workbench.tensorflow.DistributedGradientTape`.

    Raises:
        ValueError: no optimizer of these two kinds, or options that do not go together.
    """
    options: dict[str, Any] = {
        "op": op,
        "predivide": gradient_predivide_factor,
        "passes": backward_passes_per_step,
        "mean": average_aggregated_gradients,
        "process_set": process_set,
    }
    reducer = TensorReducer(BRIDGE, compression, sparse_as_dense, scale_local_gradients, **options)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return DistributedV1Optimizer(optimizer, reducer, name, use_locking)
    from workbench.keras.optimizer import distribute

    return distribute(optimizer, reducer)


class DistributedV1Optimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # untyped
    """An optimizer of ``tf.compat.v1.train`` with gradients reduced between ``compute_`` and ``apply_gradients``.

    Args:
        optimizer: the optimizer itself.
        reducer: reduces the gradients.
        name, use_locking: see ``tf.compat.v1.train.Optimizer``.
    """

    def __init__(
        self, optimizer: Any, reducer: TensorReducer, name: str | None = None, use_locking: bool = False
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer, self._reducer, self._ready = optimizer, reducer, None
        self._local: list[Any] = []
        self._agg_helper = Aggregation(reducer) if reducer.passes > 1 else None

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable stays on this rank."""
        self._local.append(var)

    @as_it_is
    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's, then reduced over the ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        variables = [variable for _, variable in pairs]
        names = names_of(variables)
        self._reducer.keep_local(names_among(names, variables, self._local))
        gradients, self._ready = self._reducer([gradient for gradient, _ in pairs], names)
        return list(zip(gradients, variables, strict=True))

    @as_it_is
    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's; after the last of ``backward_passes_per_step`` passes only."""
        if self._ready is None:
            with self._reducer.stepping([True]):
                return self._optimizer.apply_gradients(*args, **kwargs)

        def step() -> Any:
            with tf.control_dependencies([self._optimizer.apply_gradients(*args, **kwargs)]):
                return tf.constant(True)

        with self._reducer.stepping([True], self._ready):
            return tf.cond(self._ready, step, lambda: tf.constant(False))

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)
