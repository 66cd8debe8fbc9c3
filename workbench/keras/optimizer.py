"""DistributedOptimizer for Keras 3, on TensorFlow, torch and JAX.

All three trainers of Keras end a step in ``optimizer.apply`` (JAX's in ``stateless_apply``), and so do custom loops.
The wrapper reduces the gradients there and hands them on; in everything else it *is* the wrapped optimizer: it shares
its variables, settings and class, so ``isinstance`` is right, and a saved model holds Keras' optimizer and no more.

Mixed precision: ``LossScaleOptimizer`` skips a step whose gradients are not finite. It must stand *inside*, where it
sees the reduced gradients, an inf of any rank among them, and all ranks skip together. Outside it would skip the
collective on one rank, and the others would wait; whoever puts it there is told so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from workbench.api import Average, ReduceOp
from workbench.keras.backend import bridge
from workbench.keras.compression import Compression
from workbench.process_sets import ProcessSet, global_process_set
from workbench.training.compression import Compressor
from workbench.training.reducer import Reducer, names_of

_TRAP = (
    "LossScaleOptimizer must be inside of DistributedOptimizer, or a rank with an inf would skip the step alone. Under "
    "mixed_float16 compile() puts it outside of any other optimizer: give it "
    "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))."
)
_OWN = ("_inner", "_reducer", "_local_layers")


class Distributed:
    """A Keras optimizer whose gradients are reduced over the ranks before they are applied.

    Args:
        optimizer: the optimizer itself.
        reducer: reduces the gradients.
        local_layers: layers whose gradients stay on this rank.
    """

    def __init__(self, optimizer: Any, reducer: Reducer, local_layers: Iterable[Any] = ()) -> None:
        object.__setattr__(self, "_inner", optimizer)
        object.__setattr__(self, "_reducer", reducer)
        object.__setattr__(self, "_local_layers", list(local_layers))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_inner"]) if "_inner" in self.__dict__ else Distributed

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss_scale_factor" and value is None:  # LossScaleOptimizer does so to what it is put around
            raise ValueError(_TRAP)
        setattr(self._inner, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._inner, name)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Reduce, then apply; see :meth:`apply`.

        Args:
            grads_and_vars: pairs of a gradient, which may be None, and its variable.
        """
        pairs = list(grads_and_vars)
        self.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return self._inner.iterations

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce the gradients over the ranks, then apply them; after the last of several passes only.

        Args:
            grads: one per variable; None where there is none, on every rank.
            trainable_variables: by default those that the optimizer was built for.

        Raises:
            CollectiveError: the reduction failed; within a graph it is the backend's error with this one's text.
        """
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        if not self._inner.built:
            self._inner.build(variables)
        reduced, ready = self._reduce(grads, variables)
        if ready is None:
            self._inner.apply(reduced, variables)
        else:
            keras.ops.cond(ready, lambda: self._inner.apply(reduced, variables), lambda: None)

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> Any:
        """As :meth:`apply`, for JAX: the new values are returned, those of the variables and those of the optimizer."""
        reduced, ready = self._reduce(grads, self._trainable_variables)

        def step() -> Any:
            return self._inner.stateless_apply(optimizer_variables, reduced, trainable_variables)

        if ready is None:
            return step()
        return keras.ops.cond(ready, step, lambda: (list(trainable_variables), list(optimizer_variables)))

    def _reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], Any]:
        names = names_of(variables)
        local = {id(weight) for layer in self._local_layers for weight in layer.trainable_weights}
        self._reducer.keep_local(name for name, variable in zip(names, variables, strict=True) if id(variable) in local)
        reducer: Reducer = self._reducer
        return reducer(list(grads), names)

    def __reduce__(self) -> Any:
        raise TypeError("A DistributedOptimizer cannot be pickled or copied: save the model.")


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
        optimizer: any Keras 3 optimizer, used from now on through what is returned only.
        name, device_dense, device_sparse: taken for the sake of scripts that give them.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        sparse_as_dense: turn TensorFlow's IndexedSlices into dense gradients first; otherwise rows are gathered.
        gradient_predivide_factor: divide by it before the sum and multiply after.
        op: Average (default), Sum or Adasum.
        backward_passes_per_step: add up the gradients of so many batches on this rank before they travel and the
            optimizer steps. (Keras' own ``gradient_accumulation_steps`` works as well, but communicates each time.)
        average_aggregated_gradients: divide by ``backward_passes_per_step``.
        num_groups, groups: taken for the sake of scripts: all gradients travel together as it is.
        process_set: the ranks to average over.
        scale_local_gradients: divide gradients that stay local by the number of ranks.

    Raises:
        ValueError: no Keras 3 optimizer, or options that do not go together.

    Example:
        >>> import workbench.keras as hvd
        >>> hvd.init()
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        >>> isinstance(optimizer, keras.optimizers.SGD)
        True
        >>> hvd.shutdown()
    """
    options = {
        "op": op,
        "predivide": gradient_predivide_factor,
        "passes": backward_passes_per_step,
        "mean": average_aggregated_gradients,
        "process_set": process_set,
    }
    return distribute(optimizer, Reducer(bridge(), compression, sparse_as_dense, scale_local_gradients, **options))


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


def distribute(optimizer: Any, reducer: Reducer) -> Distributed:
    """Wrap an optimizer, which may be wrapped already, by a notebook's cell that is run again.

    Raises:
        ValueError: no Keras 3 optimizer.
    """
    if is_distributed(optimizer):
        optimizer = optimizer._inner
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"DistributedOptimizer needs an optimizer of Keras 3 (or of tf.compat.v1.train), not {type(optimizer)}."
        )
    _keep_xla_away()
    return Distributed(optimizer, reducer)


def is_distributed(optimizer: Any) -> bool:
    """Is it wrapped? ``isinstance`` would ask the wrapped optimizer."""
    return type(optimizer) is Distributed


@functools.cache
def _keep_xla_away() -> None:
    """On TensorFlow ``compile(jit_compile="auto")`` takes XLA, which cannot call the host: see to it that it does not.

    1. A model with our optimizer does not support XLA, as far as Keras asks; for ``jit_compile=True`` Keras then says
       in a warning that it goes without.
    2. Keras asks this one function, and there is no way to answer by the optimizer. Where a later Keras has it no more,
       :func:`workbench.tensorflow.tensors.on_host` still refuses, with a text that says ``jit_compile=False``.
    """
    if keras.backend.backend() != "tensorflow":
        return
    from keras.src.trainers import trainer

    plain = getattr(trainer, "model_supports_jit", None)
    if plain is None:
        return

    @functools.wraps(plain)
    def supports(model: Any) -> bool:
        return not is_distributed(getattr(model, "optimizer", None)) and plain(model)

    trainer.model_supports_jit = supports


__all__ = ["Distributed", "DistributedOptimizer", "PartialDistributedOptimizer", "distribute", "is_distributed"]
