"""The verbs on jax arrays and pytrees of them: at once, or within ``jit``; differentiable.

What all share is in :mod:`workbench.job.api`; the derivatives in :mod:`workbench.training.derivatives`. All leaves of a
pytree are sent as one group. Within ``jit``

* the shapes of results must be known, so an allgather assumes that all ranks have equally many rows, and raises an
  error if they have not, and alltoall takes no ``splits``;
* ``vmap``, and more than one device in a function, are refused by JAX itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from workbench.core.backend.base import Array
from workbench.core.messages import Kind
from workbench.errors import MismatchError, UnsupportedTensorError
from workbench.jax.tensors import BRIDGE, Compression, as_given, on_host, sendable, traced
from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.training.bridge import Spec
from workbench.training.calls import Call, choose_op
from workbench.training.compression import Compressor
from workbench.training.derivatives import derivative_of


def allreduce(
    tree: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce over all ranks; differentiable for Average and Sum.

    Args:
        tree: an array, or a pytree of arrays: the same shapes and dtypes on every rank.
        average: Horovod's older way to say Average (True) or Sum (False).
        name, process_set: see :mod:`workbench.job.api`.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        prescale_factor, postscale_factor: multiply before and after the reduction.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import workbench.jax as hvd
        >>> hvd.init()
        >>> jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(jnp.ones(2)).tolist()
        [1.0, 1.0]
        >>> hvd.shutdown()
    """
    call = Call(
        Kind.ALLREDUCE, name, choose_op(op, average), prescale_factor, postscale_factor, process_set=process_set
    )
    return _on_tree(call, tree, compression)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As :func:`allreduce` for several arrays, by the name that other frameworks have: a list is a pytree."""
    factors = prescale_factor, postscale_factor
    return allreduce(list(tensors), average, name, compression, op, *factors, process_set)  # type: ignore[no-any-return]


def allgather(tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate along the first dimension, which may differ between ranks, but not within ``jit``; differentiable."""
    return _on_tree(Call(Kind.ALLGATHER, name, process_set=process_set), tree)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """As :func:`allgather` for several arrays, see :func:`grouped_allreduce`."""
    return allgather(list(tensors), name, process_set)  # type: ignore[no-any-return]


def broadcast(tree: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The root's arrays on every rank; differentiable."""
    return _on_tree(Call(Kind.BROADCAST, name, root=root_rank, process_set=process_set), tree)


def alltoall(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[i]`` rows to rank i, by default equally many; differentiable.

    Returns:
        The rows received; with ``splits`` a pair of these and the number received from each rank.

    Raises:
        UnsupportedTensorError: ``splits`` within ``jit``, where nobody can know how many rows come.
    """
    rows = None if splits is None else tuple(int(each) for each in splits)
    call = Call(Kind.ALLTOALL, name, splits=rows, process_set=process_set)
    sent, kind = sendable(tensor, call.verb)
    made = _run(call, [sent])
    return as_given(made[0], kind) if splits is None else (as_given(made[0], kind), made[1])


def reducescatter(
    tree: Any,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce, and keep this rank's rows; the first ``rows % size()`` ranks get one more. Differentiable."""
    call = Call(Kind.REDUCESCATTER, name, op, prescale_factor, postscale_factor, process_set=process_set)
    return _on_tree(call, tree, compression)


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """As :func:`reducescatter` for several arrays, see :func:`grouped_allreduce`."""
    factors = prescale_factor, postscale_factor
    return reducescatter(list(tensors), name, compression, op, process_set, *factors)  # type: ignore[no-any-return]


def _on_tree(call: Call, tree: Any, compression: Compressor = Compression.none) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    sent = [sendable(each, call.verb) for each in leaves]
    small = [compression.compress(each) for each, _ in sent]
    made = _run(call, [each for each, _ in small]) if small else []
    large = [compression.decompress(each, ctx) for each, (_, ctx) in zip(made, small, strict=True)]
    return jax.tree.unflatten(structure, [as_given(each, kind) for each, (_, kind) in zip(large, sent, strict=True)])


def _run(call: Call, tensors: Sequence[Any]) -> list[Any]:
    """At once, or as a part of what is traced, with its derivative."""
    if not traced(tensors):
        # A constant within jit is an array like any other until an operation of JAX's takes it: each run is to have its
        # collective, not the tracing, which each rank does when it likes.
        tensors = [jax.lax.optimization_barrier(tensors[0]), *tensors[1:]]  # type: ignore[no-untyped-call]
    if not traced(tensors):
        return on_host(call, tensors, [])
    inputs = [BRIDGE.spec(each) for each in tensors]

    def forward(*xs: Any) -> tuple[Any, ...]:
        if not traced(xs):  # jax.grad without jit: the values are there, and so are the shapes of what comes
            return tuple(on_host(call, xs, []))
        outputs = _outputs(call, inputs)
        return tuple(on_host(lambda arrays: _checked(call(arrays), outputs), xs, outputs))

    def backward(_: None, dy: Sequence[Any]) -> tuple[Any, ...]:
        derivative, rows = derivative_of(call), [shape[0] if shape else 0 for _, shape in inputs]
        return tuple(on_host(lambda arrays: derivative(arrays, rows), dy[: len(inputs)], inputs))  # type: ignore[arg-type]

    function = jax.custom_vjp(forward)
    function.defvjp(lambda *xs: (forward(*xs), None), backward)
    return list(function(*tensors))


def _outputs(call: Call, inputs: Sequence[Spec]) -> list[Spec]:
    shapes = [shape or () for _, shape in inputs]
    dtypes = [dtype for dtype, _ in inputs]
    members = call.process_set.size() or 1
    if call.verb.splits:
        if call.splits is not None:
            raise UnsupportedTensorError(
                "Within jit alltoall() takes no splits: the number of received rows is not known."
            )
        return [*zip([*dtypes, "int32"], [*shapes, (members,)], strict=True)]  # as many rows come as go
    if call.verb.ragged:
        made = [(shape[0] * members, *shape[1:]) if shape else shape for shape in shapes]  # type: ignore[operator]
        return [*zip(dtypes, made, strict=True)]
    return [*zip(dtypes, call.shapes(shapes), strict=True)]


def _checked(arrays: Sequence[Array], expected: Sequence[Spec]) -> list[Array]:
    for array, (_, shape) in zip(arrays, expected, strict=True):
        if array.shape != shape:
            raise MismatchError(
                f"Within jit all ranks must have equally many rows: the result must have shape {shape}, but has "
                f"{array.shape}. Pad to one length, or call the collective outside of jit."
            )
    return list(arrays)


__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]
