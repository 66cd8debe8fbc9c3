"""Gradients of JAX averaged over all ranks: from ``value_and_grad``, or within an optimizer of optax.

Both work at once and within ``jit``. All gradients of a step go in one call, matched by their places in the pytree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from workbench.jax.tensors import BRIDGE, Compression
from workbench.jax.verbs import broadcast
from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.job.requests import OrderOfUse
from workbench.training.bridge import TensorReducer
from workbench.training.compression import Compressor
from workbench.training.step_count import note_broadcast


def reduce_gradients(gradients: Any, reducer: TensorReducer, weights: Any = None) -> tuple[Any, Any]:
    """A pytree of gradients, reduced; and a flag, see :class:`workbench.training.bridge.TensorReducer`.

    Args:
        weights: the pytree that they are the gradients of, if it is known.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(gradients)
    names = [f"gradient{jax.tree_util.keystr(path)}" for path, _ in leaves]
    # Parameters that are integers have gradients of a dtype without values: those stay.
    values = [None if leaf.dtype == jax.dtypes.float0 else leaf for _, leaf in leaves]
    reduced, ready = reducer(values, names, None if weights is None else jax.tree_util.tree_leaves(weights))
    kept = [leaf if each is None else each for each, (_, leaf) in zip(reduced, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, kept), ready


def distributed_value_and_grad(
    fun: Callable[..., Any],
    argnums: Any = 0,
    has_aux: bool = False,
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> Callable[..., Any]:
    """``jax.value_and_grad`` with the gradients of all ranks.

    Args:
        fun, argnums, has_aux, options: as ``jax.value_and_grad`` has them.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        op: Average (default), Sum or Adasum.
        gradient_predivide_factor: divide by it before the sum and multiply after.
        process_set: the ranks to average over.

    Returns:
        A function that returns (this rank's value, the reduced gradients).

    Example:
        >>> import workbench.jax as hvd
        >>> hvd.init()
        >>> step = jax.jit(hvd.distributed_value_and_grad(lambda w, x: (w * x).sum()))
        >>> [float(each) for each in step(2.0, jnp.array([3.0, 4.0]))]
        [14.0, 7.0]
        >>> hvd.shutdown()
    """
    # All functions have one order of use: one may be made in each step.
    options_of: dict[str, Any] = {"op": op, "predivide": gradient_predivide_factor, "process_set": process_set}
    reducer = TensorReducer(BRIDGE, compression, order=OrderOfUse(()), **options_of)
    plain = jax.value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def value_and_grad(*args: Any, **kwargs: Any) -> Any:
        value, gradients = plain(*args, **kwargs)
        weights = [args[i] for i in argnums] if isinstance(argnums, Sequence) else args[argnums]
        return value, reduce_gradients(gradients, reducer, weights)[0]

    return value_and_grad


class GradientTransformation(NamedTuple):
    """What optax takes for an optimizer: two functions."""

    init: Callable[..., Any]
    update: Callable[..., Any]


def DistributedOptimizer(  # noqa: N802 - as in the other frameworks
    optimizer: Any,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
) -> GradientTransformation:
    """Wrap an optimizer of optax so that every rank updates with the gradients of all.

    Args:
        optimizer: any optax ``GradientTransformation``; its state is the same with and without the wrapper.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        backward_passes_per_step: add up so many gradients on this rank before they are sent; until then updates are 0.
        op: Average (default), Sum or Adasum.
        gradient_predivide_factor: divide by it before the sum and multiply after.
        average_aggregated_gradients: divide by ``backward_passes_per_step``.
        process_set: the ranks to average over.

    Example:
        >>> import optax
        >>> import workbench.jax as hvd
        >>> hvd.init()
        >>> optimizer = hvd.DistributedOptimizer(optax.sgd(0.5))
        >>> updates, state = optimizer.update({"w": jnp.ones(1)}, optimizer.init({"w": jnp.ones(1)}))
        >>> updates["w"].tolist()
        [-0.5]
        >>> hvd.shutdown()
    """
    reducer = TensorReducer(
        BRIDGE,
        compression,
        op=op,
        predivide=gradient_predivide_factor,
        passes=backward_passes_per_step,
        mean=average_aggregated_gradients,
        process_set=process_set,
    )

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        reduced, ready = reduce_gradients(gradients, reducer, params)
        if ready is None:
            with reducer.stepping(jax.tree_util.tree_leaves(reduced)):
                updates, state = optimizer.update(reduced, state, params, **extra)
            if params is None:
                reducer.note_changes(jax.tree_util.tree_leaves(updates))
            return updates, state
        nothing = jax.tree.map(jnp.zeros_like, gradients)
        return jax.lax.cond(ready, lambda: optimizer.update(reduced, state, params, **extra), lambda: (nothing, state))

    return GradientTransformation(optimizer.init, update)


def broadcast_parameters(params: Any, root_rank: int = 0) -> Any:
    """The root's pytree on every rank; arrays of JAX do not change, so it is returned.

    Args:
        params: parameters, or an optimizer's state: the same structure on every rank. Leaves may be numbers.
        root_rank: who has the right values.

    Example:
        >>> import workbench.jax as hvd
        >>> hvd.init()
        >>> hvd.broadcast_parameters({"w": jnp.ones(1)}, root_rank=0)["w"].tolist()
        [1.0]
        >>> hvd.shutdown()
    """
    equal = broadcast(params, root_rank, "broadcast_parameters")
    note_broadcast()
    return equal
