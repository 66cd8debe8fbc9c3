"""The verbs on MXNet's arrays, ``mx.nd`` and ``mx.np``; those with ``_`` at the end work in place.

What all share is in :mod:`workbench.job.api`. They return when the result is there. ``op`` is Average (default), Sum,
Min, Max or Product; ``average=`` is Horovod's older way to say Average (True) or Sum (False). ``priority`` is
ignored, because the coordinator sets the order; it is accepted for Horovod compatibility.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np

from workbench.core.messages import Kind
from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.mxnet.tensors import array_of, fill, new_like
from workbench.training.calls import Call, choose_op


class InvalidArgumentError(ValueError, mx.base.MXNetError):  # type: ignore[misc]  # untyped
    """Arguments that do not fit: Horovod's scripts catch MXNet's error, which is a RuntimeError."""


@contextmanager
def _as_mxnet_s() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> Any:
    """Reduce over all ranks into a new array.

    Example:
        >>> import mxnet as mx
        >>> import workbench.mxnet as hvd
        >>> hvd.init()
        >>> hvd.allreduce(mx.nd.array([1.0, 2.0]), average=False).asnumpy()
        array([1., 2.], dtype=float32)
        >>> hvd.shutdown()
    """
    call = _reduction(name, average, op, prescale_factor, postscale_factor, process_set)
    return _new(call, [tensor])[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> Any:
    """As :func:`allreduce`, in place."""
    call = _reduction(name, average, op, prescale_factor, postscale_factor, process_set)
    return _in_place(call, [tensor])[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> list[Any]:
    """As :func:`allreduce` for several arrays; none starts before all are ready on every rank."""
    call = _reduction(name, average, op, prescale_factor, postscale_factor, process_set)
    return _new(call, tensors)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
) -> list[Any]:
    """As :func:`grouped_allreduce`, in place."""
    call = _reduction(name, average, op, prescale_factor, postscale_factor, process_set)
    return _in_place(call, tensors)


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenate along the first dimension, which may differ between ranks."""
    return _new(Call(Kind.ALLGATHER, name, process_set=process_set), [tensor])[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """As :func:`allgather` for several arrays."""
    return _new(Call(Kind.ALLGATHER, name, process_set=process_set), tensors)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's values on every rank, in a new array."""
    return _new(Call(Kind.BROADCAST, name, root=root_rank, process_set=process_set), [tensor])[0]


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As :func:`broadcast`, in place."""
    return _in_place(Call(Kind.BROADCAST, name, root=root_rank, process_set=process_set), [tensor])[0]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[i]`` rows to the i-th rank; without splits, the same number to each.

    Returns:
        The rows received; if splits are given, a pair: them, and how many came from each rank (int32).

    Raises:
        MXNetError: splits of another dtype than int32, or that do not fit the rows; it is a ValueError, too.
    """
    call = Call(Kind.ALLTOALL, name, splits=_rows_of(splits), process_set=process_set)
    with _as_mxnet_s():
        received, counts = call([array_of(tensor)])
    result = new_like(received, tensor)
    return result if splits is None else (result, mx.nd.array(counts, dtype=counts.dtype))


def _rows_of(splits: Any) -> tuple[int, ...] | None:
    """The splits as numbers; an array must have int32, as Horovod has it."""
    if splits is None:
        return None
    if isinstance(splits, mx.nd.NDArray):
        if splits.dtype != np.int32:
            raise InvalidArgumentError(f"splits must be int32, not {np.dtype(splits.dtype)}: splits.astype('int32').")
        splits = splits.asnumpy()
    return tuple(int(each) for each in splits)


def reducescatter(
    tensor: Any,
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce and keep this rank's rows; the first ``len(tensor) % size()`` ranks get one row more."""
    return grouped_reducescatter([tensor], op, name, priority, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """As :func:`reducescatter` for several arrays."""
    return _new(Call(Kind.REDUCESCATTER, name, op, prescale_factor, postscale_factor, process_set=process_set), tensors)


def _reduction(
    name: str | None,
    average: bool | None,
    op: ReduceOp | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Call:
    return Call(Kind.ALLREDUCE, name, choose_op(op, average), prescale, postscale, process_set=process_set)


def _new(call: Call, tensors: Sequence[Any]) -> list[Any]:
    if not tensors:
        return []
    with _as_mxnet_s():
        arrays = call([array_of(each) for each in tensors])
    return [new_like(array, tensor) for array, tensor in zip(arrays, tensors, strict=True)]


def _in_place(call: Call, tensors: Sequence[Any]) -> list[Any]:
    if tensors:
        with _as_mxnet_s():
            arrays = call([array_of(each) for each in tensors])
        for array, tensor in zip(arrays, tensors, strict=True):
            fill(tensor, array)
    return list(tensors)


__all__ = [
    "InvalidArgumentError",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]
