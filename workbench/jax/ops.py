"""How the verbs are run on jax's arrays: at once, or as a part of what is traced. The verbs are in ``verbs.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from workbench.core.backend.base import Array
from workbench.errors import MismatchError, UnsupportedTensorError
from workbench.jax.tensors import BRIDGE, Compression, as_given, on_host, sendable, traced
from workbench.job.calls import Call
from workbench.training.bridge import Spec
from workbench.training.compression import Compressor
from workbench.training.derivatives import derivative_of


def run(call: Call, trees: Sequence[Any], compression: Compressor = Compression.none) -> list[Any]:
    """A verb on pytrees: all leaves as one group."""
    leaves, structure = jax.tree.flatten(list(trees))
    sent = [sendable(each, call.verb) for each in leaves]
    small = [compression.compress(each) for each, _ in sent]
    made = _run(call, [each for each, _ in small]) if small else []
    large = [compression.decompress(each, ctx) for each, (_, ctx) in zip(made, small, strict=True)]
    back = [as_given(each, kind) for each, (_, kind) in zip(large, sent, strict=True)]
    return jax.tree.unflatten(structure, back)  # type: ignore[no-any-return]


def exchange(call: Call, tensor: Any) -> Any:
    """Alltoall: the rows received; with splits a pair of these and the number received from each rank."""
    sent, kind = sendable(tensor, call.verb)
    rows, counts = _run(call, [sent])
    return as_given(rows, kind) if call.splits is None else (as_given(rows, kind), counts)


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
