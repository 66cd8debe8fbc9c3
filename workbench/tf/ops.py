"""The verbs on TensorFlow tensors: eager, within ``tf.function``, and in the graphs of ``tf.compat.v1``.

What all share stands in :mod:`workbench.job.api`; the derivatives in :mod:`workbench.training.derivatives`.
``device_dense``, ``device_sparse`` and ``ignore_name_scope`` are ignored; accepted for Horovod compatibility.

In a graph any number of collectives may wait side by side, in any order on each rank: see
:mod:`workbench.tf.host_calls`. They are matched by name. Several tensors are faster as one group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from workbench.core.messages import Kind
from workbench.errors import UnsupportedTensorError
from workbench.job import api
from workbench.job.api import Average, ReduceOp, Sum
from workbench.job.context import HOLDER
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.tf.errors import as_tensorflow_s
from workbench.tf.tensors import Compression, as_it_is, on_host, run_call
from workbench.training.calls import Call, choose_op
from workbench.training.compression import Compressor


@as_it_is
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce over all ranks into a new tensor; differentiable for Average and Sum.

    Args:
        tensor: the same shape and dtype on every rank; ``tf.IndexedSlices`` may have other rows on every rank.
        average: Horovod's older way to say Average (True) or Sum (False).
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        prescale_factor, postscale_factor: multiply before and after the reduction.
        name, process_set: see :mod:`workbench.job.api`.

    Raises:
        NotImplementedError: IndexedSlices with another op, or with factors.

    Example:
        >>> import workbench.tensorflow as hvd
        >>> hvd.init()
        >>> hvd.allreduce(tf.constant([2.0]), op=hvd.Sum).numpy()
        array([2.], dtype=float32)
        >>> hvd.shutdown()
    """
    chosen = choose_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_slices([tensor], chosen, (prescale_factor, postscale_factor), name, process_set)[0]
    small, ctx = compression.compress(tf.convert_to_tensor(tensor))
    call = Call(Kind.ALLREDUCE, name, chosen, prescale_factor, postscale_factor, process_set=process_set)
    return compression.decompress(run_call(call, [small])[0], ctx)


def _allreduce_slices(
    slices: Sequence[Any], op: ReduceOp, factors: tuple[float, float], name: str | None, process_set: ProcessSet
) -> list[Any]:
    """All ranks' slices: who adds them up has the sum."""
    if op not in (Average, Sum) or factors != (1.0, 1.0):
        raise NotImplementedError("tf.IndexedSlices can be reduced with Average or Sum only, without factors.")
    values = grouped_allgather([each.values for each in slices], name and f"{name}.values", process_set=process_set)
    indices = grouped_allgather([each.indices for each in slices], name and f"{name}.indices", process_set=process_set)
    if op is Average:
        values = [each / tf.cast(process_set.size() or 1, each.dtype) for each in values]
    parts = zip(values, indices, slices, strict=True)
    return [tf.IndexedSlices(rows, places, dense_shape=each.dense_shape) for rows, places, each in parts]


@as_it_is
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """As :func:`allreduce` for several tensors; none starts before all are ready on every rank.

    ``tf.IndexedSlices`` among them stay what they are: they are gathered, as a group of their own.
    """
    chosen, made = choose_op(op, average), list(tensors)
    sparse = [i for i, each in enumerate(made) if isinstance(each, tf.IndexedSlices)]
    dense = [i for i, each in enumerate(made) if not isinstance(each, tf.IndexedSlices)]
    if sparse:
        slices = [made[i] for i in sparse]
        reduced = _allreduce_slices(slices, chosen, (prescale_factor, postscale_factor), name, process_set)
        made = _replaced(made, sparse, reduced)
    if dense:
        small = [compression.compress(tf.convert_to_tensor(made[i])) for i in dense]
        call = Call(Kind.ALLREDUCE, name, chosen, prescale_factor, postscale_factor, process_set=process_set)
        wide = [compression.decompress(each, ctx) for each, (_, ctx) in
                zip(run_call(call, [tensor for tensor, _ in small]), small, strict=True)]  # fmt: skip
        made = _replaced(made, dense, wide)
    return made


def _replaced(items: Sequence[Any], places: Sequence[int], by: Sequence[Any]) -> list[Any]:
    others = dict(zip(places, by, strict=True))
    return [others.get(i, each) for i, each in enumerate(items)]


@as_it_is
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate along the first dimension, which may differ between ranks; differentiable."""
    return run_call(Call(Kind.ALLGATHER, name, process_set=process_set), [tensor])[0]


@as_it_is
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As :func:`allgather` for several tensors."""
    return run_call(Call(Kind.ALLGATHER, name, process_set=process_set), tensors) if tensors else []


@as_it_is
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's tensor on every rank; differentiable."""
    return run_call(Call(Kind.BROADCAST, name, root=root_rank, process_set=process_set), [tensor])[0]


@as_it_is
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The root's values into these variables; in a graph, the ops that do it.

    Returns:
        The variables, or in a graph the ops.
    """
    call = Call(Kind.BROADCAST, name or "broadcast_variables", root=root_rank, process_set=process_set)
    values = run_call(call, [tf.stop_gradient(tf.convert_to_tensor(each)) for each in variables]) if variables else []
    done = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    return list(variables) if tf.executing_eagerly() else done


@as_it_is
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[i]`` rows to rank i; differentiable.

    Returns:
        The rows received; with ``splits`` a pair of these and the number received from each rank (int32).
    """
    call = Call(Kind.ALLTOALL, name, process_set=process_set)
    rows = None if splits is None else tf.cast(_int32(splits), tf.int64)
    received, counts = run_call(call, [tensor], rows)
    return received if splits is None else (received, counts)


def _int32(splits: Any) -> Any:
    """As Horovod takes them: numbers, or a tensor of int32."""
    try:
        return tf.convert_to_tensor(splits, tf.int32)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        with as_tensorflow_s():
            raise UnsupportedTensorError(f"splits must be int32, a number for each rank: {error}") from None


@as_it_is
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce, and keep this rank's rows; the first ``rows % size()`` ranks get one more. Differentiable."""
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _scatter([tensor], compression, op, name, process_set, **factors)[0]


@as_it_is
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """As :func:`reducescatter` for several tensors; none starts before all are ready on every rank."""
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _scatter(tensors, compression, op, None, process_set, **factors) if tensors else []


def _scatter(
    tensors: Sequence[Any],
    compression: Compressor,
    op: ReduceOp,
    name: str | None,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> list[Any]:
    small = [compression.compress(tf.convert_to_tensor(each)) for each in tensors]
    call = Call(Kind.REDUCESCATTER, name, op, prescale_factor, postscale_factor, process_set=process_set)
    reduced = run_call(call, [tensor for tensor, _ in small])
    return [compression.decompress(each, ctx) for each, (_, ctx) in zip(reduced, small, strict=True)]


@as_it_is
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks as a tensor (int32), asked for whenever the graph runs; in eager mode at once."""
    return _number(lambda: len(HOLDER.get().sets.members[process_set_id]))


@as_it_is
def rank_op(name: str | None = None) -> Any:
    """This rank as a tensor, as :func:`size_op`."""
    return _number(api.rank)


@as_it_is
def local_size_op(name: str | None = None) -> Any:
    """The number of ranks on this node, as :func:`size_op`."""
    return _number(api.local_size)


@as_it_is
def local_rank_op(name: str | None = None) -> Any:
    """This rank's number on its node, as :func:`size_op`."""
    return _number(api.local_rank)


@as_it_is
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank belongs to the process set, else 0, as :func:`size_op`."""
    return _number(lambda: int(api.rank() in HOLDER.get().sets.members[process_set_id]))


def _number(ask: Callable[[], int]) -> Any:
    return on_host(lambda _: [np.array(ask(), np.int32)], [], [("int32", ())], waits=False)[0]


__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
