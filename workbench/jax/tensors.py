"""jax arrays ↔ host arrays, at once or when a compiled function runs.

Within ``jit``, ``scan`` or ``cond`` a call to the host is one of :mod:`workbench.jax.host_calls`: JAX keeps the order
of the program, also between functions that are compiled apart. It is not differentiated: the verbs bring their own
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workbench.core.backend.base import Array
from workbench.core.verbs import Verb
from workbench.errors import UnsupportedTensorError
from workbench.jax.host_calls import HOST_CALLS
from workbench.job.arrays import borrowed, on_gpu, plain
from workbench.job.context import HOLDER
from workbench.training.bridge import Bridge, Spec
from workbench.training.compression import Compression as Casts
from workbench.training.graph_calls import GraphCalls
from workbench.training.progress import stride

GRAPH = GraphCalls()
Compression = Casts.casting(
    is_wider=lambda t, dtype: jnp.issubdtype(t.dtype, jnp.floating) and t.dtype.itemsize > 2,
    cast=lambda t, dtype: t.astype(dtype),
    fp16=jnp.float16,
    bf16=jnp.bfloat16,
)

_THREADS = (
    "Ranks that are threads share one JAX, whose compiled functions call the host one after another: they would wait "
    "for each other. Call collectives outside of jit there, or use processes: workbench run -np 2 python train.py."
)
_UNKNOWN = (
    "Within jit every shape must be known, and this collective's result depends on the other ranks. Call it outside "
    "of jit."
)


def traced(tensors: Sequence[Any]) -> bool:
    """Is one of them a tracer? Then JAX is tracing a function."""
    return any(isinstance(each, jax.core.Tracer) for each in tensors)


def on_host(
    function: Callable[[list[Array]], list[Array]], tensors: Sequence[Any], results: Sequence[Spec], lends: bool = False
) -> list[Any]:
    """Call ``function`` with the arrays, now or whenever the compiled function runs; its results as jax arrays.

    Args:
        lends: nobody looks at the arrays when the function has returned, so they may be XLA's own memory.

    Raises:
        UnsupportedTensorError: within a compiled function: among threads, or where a shape is not known.
    """
    if not traced(tensors):
        made = function([_array(each) for each in tensors])
        return [jax.dlpack.from_dlpack(each) if on_gpu(each) else jnp.asarray(each) for each in made]
    if HOLDER.own() is not None:
        raise UnsupportedTensorError(_THREADS)
    if any(shape is None or None in shape for _, shape in results):
        raise UnsupportedTensorError(_UNKNOWN)
    HOLDER.get().unfinished.add(jax.effects_barrier)  # JAX returns before the function has run
    structs = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for dtype, shape in results]  # type: ignore[no-untyped-call]
    return list(HOST_CALLS.call(GRAPH.function(function), tensors, structs, lends))


def _array(tensor: Any) -> Array:
    found = borrowed(tensor, str(tensor.dtype)) if isinstance(tensor, jax.Array) else None
    return np.asarray(tensor) if found is None else found


def sendable(leaf: Any, one: Verb) -> tuple[Any, Any]:
    """A leaf of a pytree as an array of numbers, and of which kind its random keys are; None if it holds none.

    Raises:
        UnsupportedTensorError: random keys, which the verb would add up, or part.
    """
    if not isinstance(leaf, jax.Array) or not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.asarray(plain(leaf) if isinstance(leaf, np.ndarray) else leaf), None
    if one.reduces:
        raise UnsupportedTensorError(
            f"Random keys ({leaf.dtype}) have no sum: broadcast one rank's, or fold_in rank()."
        )
    if one.by_rows and not leaf.shape:
        raise UnsupportedTensorError(f"A single random key ({leaf.dtype}) has no rows. Give it shape (1,): key[None].")
    return jax.random.key_data(leaf), jax.random.key_impl(leaf)


def as_given(tensor: Any, kind: Any) -> Any:
    """What came of a leaf: random keys again, if it held some."""
    return tensor if kind is None else jax.random.wrap_key_data(tensor, impl=kind)


def own_errors() -> AbstractContextManager[None]:
    """Within the block, an error of JAX's is the one that our function raised."""
    return GRAPH.own_errors(jax.errors.JaxRuntimeError)


class JaxBridge(Bridge):
    """What gradients need."""

    lends = True

    def eager(self, tensor: Any) -> bool:
        """Outside of what JAX compiles."""
        return not traced([tensor])

    def on_host(
        self, function: Callable[[list[Array]], list[Array]], tensors: Sequence[Any], results: Sequence[Spec]
    ) -> list[Any]:
        """Gradients are nobody else's, and the buckets of those in flight are ours."""
        return on_host(function, tensors, results, self.lends)

    def spec(self, tensor: Any) -> Spec:
        return str(tensor.dtype), tuple(tensor.shape)

    def scaled(self, gradient: Any, factor: float) -> Any:
        return gradient * jnp.asarray(factor, gradient.dtype)

    def sample(self, tensors: Sequence[Any]) -> Any:
        flat = [jnp.ravel(each) for each in tensors if jnp.issubdtype(jnp.result_type(each), jnp.floating)]
        parts = [each[:: stride(each.size)].astype(jnp.float32) for each in flat]
        return jnp.concatenate([jnp.zeros(0, jnp.float32), *parts])


BRIDGE = JaxBridge()
