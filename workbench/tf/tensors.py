"""TensorFlow tensors ↔ host arrays, at once or when a graph runs.

In a graph a call to the host is **one** call for all that it needs (:mod:`workbench.tf.host_calls`). Its inputs
are TensorFlow's own memory, and what it returns becomes a tensor without being copied. XLA cannot call the host:
:func:`on_host` says so when the graph is made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
from tensorflow.python.util import tf_stack

from workbench.common.user_line import place_of
from workbench.core.backend.base import Array
from workbench.errors import UnsupportedTensorError
from workbench.job.arrays import borrowed, on_gpu
from workbench.job.calls import Call, Shape
from workbench.tf.errors import as_tensorflow_s
from workbench.tf.host_calls import HOST_CALLS
from workbench.training.bridge import Bridge, Spec
from workbench.training.compression import Compression as Casts
from workbench.training.derivatives import derivative_of
from workbench.training.graph_calls import GraphCalls
from workbench.training.progress import stride

F = TypeVar("F", bound=Callable[..., Any])
_NAMES: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
_CALLS: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
GRAPH = GraphCalls(str(Path(tf.__file__).parent))
Compression = Casts.casting(
    is_wider=lambda t, dtype: t.dtype.is_floating and t.dtype.size > dtype.size,
    cast=tf.cast,
    fp16=tf.float16,
    bf16=tf.bfloat16,
)

_XLA = (
    "XLA compiles this function (jit_compile=True), and code compiled by XLA cannot communicate with other ranks. "
    "Leave the collective out of it: compile the model with jit_compile=False, or decorate only the parts without it."
)


def as_it_is(function: F) -> F:
    """A function that AutoGraph leaves alone; else it rewrites all of ours that make a graph, which takes seconds."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


@as_it_is
def on_host(
    function: Callable[[list[Array]], list[Array]],
    tensors: Sequence[Any],
    results: Sequence[Spec],
    waits: bool = True,
    in_order: bool = False,
) -> Any:
    """Call ``function`` with the tensors' arrays, now or whenever the graph runs; its results as tensors.

    Args:
        waits: it may take long, for it waits for other ranks.
        in_order: within ``tf.function``, one after the other, as the program has them.

    Raises:
        UnsupportedTensorError: within XLA.
    """
    if tf.executing_eagerly():
        with as_tensorflow_s():
            return [_tensor(each) for each in function([_array(tensor) for tensor in tensors])]
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UnsupportedTensorError(_XLA)
    dtypes = [tf.as_dtype(dtype) for dtype, _ in results]
    calls = _calls_of(tf.compat.v1.get_default_graph())
    calls["waiting"] += waits
    run = GRAPH.function(lambda *arrays: function(list(arrays)), _users_line(), lambda: calls["waiting"] > 1)
    # One that waits holds a thread of TensorFlow's pool; of those in order there is only one at a time.
    one_by_one = in_order and isinstance(tf.compat.v1.get_default_graph(), FuncGraph)
    direct = not waits or one_by_one
    made = tf.numpy_function(run, list(tensors), dtypes) if direct else HOST_CALLS.call(run, tensors, dtypes, in_order)
    for tensor, (_, shape) in zip(made, results, strict=True):
        if shape is not None:
            tensor.set_shape(shape)
    return made


def _users_line() -> str:
    """As ``blocked_threads.users_line``; TensorFlow knows it of what AutoGraph has rewritten, too."""
    return place_of((each.filename, each.lineno) for each in reversed(tf_stack.extract_stack()))


def _calls_of(graph: Any) -> Counter[str]:
    """How many calls to the host there are in this graph and those that it is a part of."""
    while isinstance(getattr(graph, "outer_graph", None), FuncGraph):
        graph = graph.outer_graph
    return _CALLS.setdefault(graph, Counter())


def _tensor(array: Array) -> Any:
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__()) if on_gpu(array) else tf.convert_to_tensor(array)


def _array(tensor: Any) -> Array:
    found = borrowed(tensor, tensor.dtype.name) if hasattr(tensor, "__dlpack_device__") else None
    if found is not None:
        return found
    # A bfloat16 without dimensions gives a number of numpy's, not an array; and what has some is not to be copied.
    return np.asarray(tensor if tensor.shape.rank else tensor.numpy())


def shape_of(tensor: Any) -> Shape | None:
    """The static shape, with None for what is not known; None if not even the rank is."""
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def own_errors() -> AbstractContextManager[None]:
    """Within the block, an error of TensorFlow's is the one that our function raised."""
    return GRAPH.own_errors(tf.errors.OpError)


class TensorFlowBridge(Bridge):
    """What gradients need."""

    def eager(self, tensor: Any) -> bool:
        return bool(tf.executing_eagerly())

    def on_host(
        self, function: Callable[[list[Array]], list[Array]], tensors: Sequence[Any], results: Sequence[Spec]
    ) -> Any:
        """In order: variables of two models may have the same names, and so would their gradients."""
        return on_host(function, tensors, results, in_order=True)

    def spec(self, tensor: Any) -> Spec:
        return tensor.dtype.name, shape_of(tensor)

    def sparse(self, gradient: Any) -> tuple[Any, Any] | None:
        return (gradient.values, gradient.indices) if isinstance(gradient, tf.IndexedSlices) else None

    def rebuilt(self, gradient: Any, values: Any, rows: Any) -> Any:
        return tf.IndexedSlices(values, rows, gradient.dense_shape)

    def dense(self, gradient: Any) -> Any:
        return tf.convert_to_tensor(gradient)

    def scaled(self, gradient: Any, factor: float) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            return self.rebuilt(gradient, self.scaled(gradient.values, factor), gradient.indices)
        return gradient * tf.cast(factor, gradient.dtype)

    def sample(self, tensors: Sequence[Any]) -> Any:
        flat = [tf.reshape(each, [-1]) for each in map(tf.convert_to_tensor, tensors) if each.dtype.is_floating]
        parts = [tf.cast(each[:: stride(each.shape[0] or 0)], tf.float32) for each in flat]
        return tf.concat([tf.zeros(0), *parts], 0)


BRIDGE = TensorFlowBridge()


@as_it_is
def run_call(call: Call, tensors: Sequence[Any], splits: Any = None) -> list[Any]:
    """A collective on tensors; gradients flow through it.

    Args:
        splits: for alltoall, an int tensor.
    """
    tensors = [tf.convert_to_tensor(each) for each in tensors]
    if not tf.executing_eagerly():
        call = replace(call, name=_unused(call.name or graph_name(call.kind.value, tensors)))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def apply(*inputs: Any) -> Any:
        dtypes, shapes = [each.dtype.name for each in inputs], [shape_of(each) for each in inputs]
        more = [] if splits is None else [splits]
        outputs = on_host(lambda arrays: _given(call, arrays, more)(arrays[: len(inputs)]), [*inputs, *more],
                          _results(call if splits is None else replace(call, splits=()), dtypes, shapes))  # fmt: skip

        def backward(*dy: Any) -> Any:
            derivative_of(call)  # refuses here, where the gradient is asked for
            mine = call if tf.executing_eagerly() else replace(call, name=_unused(f"{call.name}.grad")[: -len(".grad")])
            # In a graph the caller may say another dtype for dy.
            dense = [tf.cast(tf.convert_to_tensor(each), of.dtype) for each, of in zip(dy, inputs, strict=False)]
            rows = tf.stack(
                [tf.shape(each, tf.int64)[0] if each.shape.rank else tf.constant(0, tf.int64) for each in inputs]
            )
            return on_host(
                lambda arrays: derivative_of(_given(mine, arrays, more))(
                    arrays[: len(inputs)], arrays[len(inputs)].tolist()
                ),
                [*dense, rows, *more],
                [*zip(dtypes, shapes, strict=True)],
            )

        return outputs, backward

    with as_tensorflow_s():
        return list(apply(*tensors))


def _unused(name: str) -> str:
    """The name, or for the second one of this name in the graph another one, for both may be in flight at once."""
    graph = tf.compat.v1.get_default_graph()
    used = _NAMES.setdefault(graph, Counter())
    used[name] += 1
    if used[name] == 1:
        return name
    stem, _, last = name.rpartition(".")
    return f"{stem}#{used[name] - 1}.{last}" if last == "grad" else f"{name}#{used[name] - 1}"


def _given(call: Call, arrays: Sequence[Array], more: Sequence[Any]) -> Call:
    """The call, with the splits that came with the arrays."""
    return replace(call, splits=tuple(int(each) for each in arrays[-1])) if more else call


def _results(call: Call, dtypes: list[str], shapes: list[Shape | None]) -> list[Spec]:
    """What comes out: for alltoall, how many rows came from each rank as well."""
    if call.verb.splits:
        dtypes = [*dtypes, "int32"]
    known = [shape for shape in shapes if shape is not None]
    made: list[Shape | None] = list(call.shapes(known)) if len(known) == len(shapes) else [None] * len(dtypes)
    return [*zip(dtypes, made, strict=True)]


def graph_name(verb: str, tensors: Sequence[Any]) -> str:
    """A name for an unnamed collective in a graph: the same whenever the graph runs, and on every rank.

    A rank that traces a function more often than another, for a smaller last batch, finds the same name again.
    """
    graph = tf.compat.v1.get_default_graph()
    of = re.sub(r"[^A-Za-z0-9_.]", "_", tensors[0].op.name) if tensors else ""
    function = re.sub(r"_\d+$", "", getattr(graph, "name", ""))
    return f"{function}/{graph.unique_name(f'Horovod_{verb}_{of}')}"
