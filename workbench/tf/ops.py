"""How the verbs are run on TensorFlow's tensors; and what has no other framework's form.

The verbs themselves are in ``verbs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from workbench.core.messages import Kind
from workbench.errors import UnsupportedTensorError
from workbench.job import api
from workbench.job.api import Average, Sum
from workbench.job.calls import Call
from workbench.job.context import HOLDER
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.tf.errors import as_tensorflow_s
from workbench.tf.tensors import Compression, as_it_is, on_host, run_call
from workbench.training.compression import Compressor


@as_it_is
def run(call: Call, tensors: Sequence[Any], compression: Compressor = Compression.none) -> list[Any]:
    """A verb on tensors. ``tf.IndexedSlices`` of an allreduce stay what they are: they are gathered, as one group."""
    made = list(tensors)
    sparse = [i for i, each in enumerate(made) if isinstance(each, tf.IndexedSlices) and call.kind is Kind.ALLREDUCE]
    dense = [i for i in range(len(made)) if i not in sparse]
    if sparse:
        made = _replaced(made, sparse, _allreduce_slices(call, [made[i] for i in sparse]))
    if dense:
        small = [compression.compress(tf.convert_to_tensor(made[i])) for i in dense]
        results = run_call(call, [tensor for tensor, _ in small])
        wide = [compression.decompress(each, ctx) for each, (_, ctx) in zip(results, small, strict=True)]
        made = _replaced(made, dense, wide)
    return made


def _allreduce_slices(call: Call, slices: Sequence[Any]) -> list[Any]:
    """All ranks' slices: who adds them up has the sum."""
    if call.op not in (Average, Sum) or (call.prescale, call.postscale) != (1.0, 1.0):
        raise NotImplementedError("tf.IndexedSlices can be reduced with Average or Sum only, without factors.")

    def gather(what: str, tensors: Sequence[Any]) -> list[Any]:
        name = call.name and f"{call.name}.{what}"
        return run_call(Call(Kind.ALLGATHER, name, process_set=call.process_set), tensors)

    values = gather("values", [each.values for each in slices])
    indices = gather("indices", [each.indices for each in slices])
    if call.op is Average:
        values = [each / tf.cast(call.process_set.size() or 1, each.dtype) for each in values]
    parts = zip(values, indices, slices, strict=True)
    return [tf.IndexedSlices(rows, places, dense_shape=each.dense_shape) for rows, places, each in parts]


def _replaced(items: Sequence[Any], places: Sequence[int], by: Sequence[Any]) -> list[Any]:
    others = dict(zip(places, by, strict=True))
    return [others.get(i, each) for i, each in enumerate(items)]


@as_it_is
def exchange(call: Call, tensor: Any) -> Any:
    """Alltoall: the rows received; with splits a pair of these and the number received from each rank."""
    rows = None if call.splits is None else tf.cast(_int32(call.splits), tf.int64)
    received, counts = run_call(replace(call, splits=None), [tensor], rows)
    return received if rows is None else (received, counts)


def _int32(splits: Any) -> Any:
    """As Horovod takes them: numbers, or a tensor of int32."""
    try:
        return tf.convert_to_tensor(splits, tf.int32)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        with as_tensorflow_s():
            raise UnsupportedTensorError(f"splits must be int32, a number for each rank: {error}") from None


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


__all__ = ["broadcast_", "local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]
