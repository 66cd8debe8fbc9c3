"""One face for every framework, and for every way in which it runs: numpy arrays in, numpy arrays out.

A check writes a *program*: a function of a mode, which has the verbs, and of tensors. The mode runs it, at once or as
a graph::

    total, = mode.run(lambda hvd, x: [hvd.allreduce(x, op=Sum)], np.ones(3))

A mode that cannot do something says so in ``lacks``, and the checks that need it are left out (:func:`needs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from workbench.training.gradient_list import GradientList

Array = np.ndarray
Program = Callable[..., Sequence[Any]]
Gradient = Any
"""An array, (values, rows, number of rows of the whole) for a sparse one, or None."""

MOVED = ["uint32", "uint64", "complex64", "complex128"]
"""Of these the verbs take what they need not add up."""
DTYPES = ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
IN_GRAPHS = ["bool", "int32", "bfloat16", "float64"]
"""A graph takes each dtype as the same framework does at once, where all are tried."""


def dtype_of(name: str) -> Any:
    """numpy's dtype of this name, and bfloat16, which others have given to numpy."""
    return import_module("ml_dtypes").bfloat16 if name == "bfloat16" else np.dtype(name)


def wide(array: Any) -> Array:
    """As float64 or complex128, to be compared."""
    made = np.asarray(array)
    return made.astype(np.complex128 if made.dtype.kind == "c" else np.float64)


class Mode:
    """numpy itself: the verbs of :mod:`workbench`. The others differ in some of this."""

    name = "numpy"
    module = "workbench"
    lacks: frozenset[str] = frozenset({"gradients", "objects", "compression"})
    dtypes: Sequence[str] = DTYPES
    errors: tuple[type[Exception], ...] = (RuntimeError, ValueError, TypeError)
    """What ends a program: ours are all of these; a graph makes others of them."""

    @property
    def hvd(self) -> Any:
        """The module that a script would import."""
        return import_module(self.module)

    @property
    def moved(self) -> Sequence[str]:
        """What the verbs take that add up nothing."""
        return [*self.dtypes, *MOVED]

    # --- programs ---------------------------------------------------------------------------------------

    def run(self, program: Program, *arrays: Array) -> list[Array]:
        """The results of the program."""
        return [self.array(each) for each in program(self, *map(self.tensor, arrays))]

    def gradients(self, program: Program, arrays: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        """The gradients of ``Σ (result · weight)`` with respect to the arrays."""
        raise NotImplementedError

    def error(self, program: Program, *arrays: Array) -> str:
        """The text of the error that the program ends with; in a graph the framework's, which has ours in it."""
        with pytest.raises(self.errors) as caught:
            self.run(program, *arrays)
        return str(caught.value)

    def tensor(self, array: Array) -> Any:
        """The framework's tensor of an array."""
        return array

    def array(self, tensor: Any) -> Array:
        """The array of a tensor."""
        return np.asarray(tensor)

    # --- verbs ------------------------------------------------------------------------------------------

    def allreduce(self, tensor: Any, **options: Any) -> Any:
        """The framework's."""
        return self.hvd.allreduce(tensor, **options)

    def grouped_allreduce(self, tensors: Sequence[Any], **options: Any) -> Any:
        """The framework's."""
        return self.hvd.grouped_allreduce(tensors, **options)

    def allgather(self, tensor: Any, **options: Any) -> Any:
        """The framework's."""
        return self.hvd.allgather(tensor, **options)

    def grouped_allgather(self, tensors: Sequence[Any], **options: Any) -> Any:
        """The framework's."""
        return self.hvd.grouped_allgather(tensors, **options)

    def broadcast(self, tensor: Any, root: int, **options: Any) -> Any:
        """The framework's."""
        return self.hvd.broadcast(tensor, root, **options)

    def alltoall(self, tensor: Any, splits: Any = None, **options: Any) -> Any:
        """The framework's: the rows, and with splits how many came from each rank."""
        made = self.hvd.alltoall(tensor, splits, **options)
        return made[0] if self.name == "numpy" and splits is None else made

    def reducescatter(self, tensor: Any, **options: Any) -> Any:
        """The framework's."""
        return self.hvd.reducescatter(tensor, **options)

    def grouped_reducescatter(self, tensors: Sequence[Any], **options: Any) -> Any:
        """The framework's."""
        return self.hvd.grouped_reducescatter(tensors, **options)

    # --- the gradients of a step ------------------------------------------------------------------------

    def reducer(self, compression: str = "none", **options: Any) -> Step:
        """Reduces lists of gradients, again and again."""
        return Lists(options)


class Step:
    """What :meth:`Mode.reducer` gives."""

    def keep_local(self, names: Sequence[str]) -> None:
        """The gradients of these names stay on this rank."""
        raise NotImplementedError

    def __call__(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Any] | None:
        """The reduced ones: tensors, a sparse one as (values, rows), or None; None where more passes are to come."""
        raise NotImplementedError


class Lists(Step):
    """Without a framework: :class:`workbench.training.gradient_list.GradientList` itself."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options, self._made = options, {}

    def __call__(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Any] | None:
        there = [i for i, each in enumerate(gradients) if each is not None]
        mine = tuple(names[i] for i in there)
        reduce = self._made.setdefault(mine, GradientList(mine, **self._options))
        made = reduce([gradients[i][:2] if isinstance(gradients[i], tuple) else gradients[i] for i in there])
        return None if made is None else [dict(zip(there, made, strict=True)).get(i) for i in range(len(gradients))]


class Torch(Mode):
    """Always eager."""

    name, module = "torch", "workbench.torch"
    lacks = frozenset({"lists"})
    dtypes = DTYPES

    def tensor(self, array: Array) -> Any:
        """numpy's bfloat16 is not torch's: the bits are."""
        import torch

        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(array.copy())

    def array(self, tensor: Any) -> Array:
        """And back."""
        import torch

        if tensor.dtype is torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(dtype_of("bfloat16"))
        return tensor.detach().numpy()

    def gradients(self, program: Program, arrays: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        import torch

        tensors = [self.tensor(each).requires_grad_() for each in arrays]
        made = program(self, *tensors)
        loss = sum((each * torch.from_numpy(w)).sum() for each, w in zip(made, weights, strict=True))
        return [self.array(each) for each in torch.autograd.grad(loss, tensors)]


class BridgeStep(Step):
    """With a :class:`workbench.training.bridge.TensorReducer`; ``run`` calls it at once or as a part of a graph."""

    def __init__(self, mode: Any, bridge: Any, compression: Any, options: dict[str, Any]) -> None:
        from workbench.training.bridge import TensorReducer

        self._mode, self._reducer, self._graphs = mode, TensorReducer(bridge, compression, **options), {}

    def keep_local(self, names: Sequence[str]) -> None:
        self._reducer.keep_local(names)

    def __call__(self, gradients: Sequence[Gradient], names: Sequence[str]) -> list[Any] | None:
        reducer, mode = self._reducer, self._mode
        parts = [each if isinstance(each, tuple) else (each,) for each in gradients]
        flat = [array for part in parts for array in part[:2] if array is not None]

        def program(_: Any, *tensors: Any) -> list[Any]:
            given = iter(tensors)
            made, ready = reducer([self._built(part, given) for part in parts], names)
            told = [] if ready is None else [ready]
            return told + [each for one in made if one is not None for each in mode.parts(one)]

        made = iter(mode.repeated(program, self._graphs, (*names, *(each is None for each in gradients)), flat))
        if reducer.passes > 1 and not bool(mode.array(next(made))):
            return None
        return [self._taken(part, made) for part in parts]

    def _built(self, part: tuple[Any, ...], given: Iterator[Any]) -> Any:
        if part[0] is None:
            return None
        return self._mode.slices(next(given), next(given), part[2]) if len(part) > 1 else next(given)

    def _taken(self, part: tuple[Any, ...], made: Iterator[Any]) -> Any:
        if part[0] is None:
            return None
        return (next(made), next(made)) if len(part) > 1 and not self._mode.densifies else next(made)


class _Framework(Mode):
    lacks = frozenset()
    dtypes = DTYPES
    densifies = False

    def slices(self, values: Any, rows: Any, length: int) -> Any:
        """A sparse gradient."""
        raise NotImplementedError

    def parts(self, gradient: Any) -> list[Any]:
        """The tensors of a gradient."""
        return [gradient]

    def repeated(self, program: Program, graphs: dict[Any, Any], key: Any, arrays: Sequence[Array]) -> list[Any]:
        """Run a program that has been run before, perhaps: a graph is kept in ``graphs``. The results are tensors."""
        return list(program(self, *map(self.tensor, arrays)))


class TensorFlow(_Framework):
    """Eager."""

    name, module = "tensorflow", "workbench.tensorflow"

    def tensor(self, array: Array) -> Any:
        import tensorflow as tf

        return tf.constant(array)

    def array(self, tensor: Any) -> Array:
        return tensor if isinstance(tensor, (np.ndarray, np.generic)) else tensor.numpy()

    def slices(self, values: Any, rows: Any, length: int) -> Any:
        import tensorflow as tf

        return tf.IndexedSlices(values, rows, tf.constant([length, *values.shape[1:]], tf.int64))

    def parts(self, gradient: Any) -> list[Any]:
        return [gradient.values, gradient.indices] if hasattr(gradient, "indices") else [gradient]

    def gradients(self, program: Program, arrays: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        return self.run(lambda _, *tensors: self._gradients(program, tensors, weights), *arrays)

    def _gradients(self, program: Program, tensors: Sequence[Any], weights: Sequence[Array]) -> list[Any]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            made = program(self, *tensors)
            loss = tf.add_n([tf.reduce_sum(each * w) for each, w in zip(made, weights, strict=True)])
        return tape.gradient(loss, list(tensors))

    def reducer(self, compression: str = "none", sparse_as_dense: bool = False, **options: Any) -> Step:
        from workbench.tf.tensors import BRIDGE

        mode = type(self)()
        mode.densifies = sparse_as_dense
        options["sparse_as_dense"] = sparse_as_dense
        return BridgeStep(mode, BRIDGE, getattr(self.hvd.Compression, compression), options)


class TensorFlowFunction(TensorFlow):
    """Within ``tf.function``."""

    name = "tf.function"
    dtypes = IN_GRAPHS
    moved = (*IN_GRAPHS, "complex64")
    errors = (Exception,)

    def run(self, program: Program, *arrays: Array) -> list[Array]:
        return [self.array(each) for each in self.repeated(program, {}, (), arrays)]

    def repeated(self, program: Program, graphs: dict[Any, Any], key: Any, arrays: Sequence[Array]) -> list[Any]:
        import tensorflow as tf

        function = graphs.setdefault(key, tf.function(lambda *tensors: list(program(self, *tensors)), autograph=False))
        return list(function(*map(self.tensor, arrays)))


class TensorFlowSession(TensorFlow):
    """A graph and a session of ``tf.compat.v1``. A graph has no order of its own: the program's is put into it."""

    name = "tf.Session"
    dtypes = IN_GRAPHS
    moved = (*IN_GRAPHS, "complex64")
    errors = (Exception,)

    def __init__(self) -> None:
        self._before: list[Any] = []

    def run(self, program: Program, *arrays: Array) -> list[Array]:
        return list(self.repeated(program, {}, (), arrays))

    def repeated(self, program: Program, graphs: dict[Any, Any], key: Any, arrays: Sequence[Array]) -> list[Any]:
        import tensorflow as tf

        if key not in graphs:
            self._before = []
            with tf.Graph().as_default():
                # How many rows a gradient has is not known.
                shapes = [(None, *each.shape[1:]) if key and each.shape else each.shape for each in arrays]
                places = [tf.compat.v1.placeholder(x.dtype, shape) for x, shape in zip(arrays, shapes, strict=True)]
                made = list(program(self, *places))
                graphs[key] = tf.compat.v1.Session(), places, made
        session, places, made = graphs[key]
        made = session.run(made, dict(zip(places, arrays, strict=True))) if made else []
        return [np.asarray(each) for each in made]

    def _gradients(self, program: Program, tensors: Sequence[Any], weights: Sequence[Array]) -> list[Any]:
        import tensorflow as tf

        made = program(self, *tensors)
        loss = tf.add_n([tf.reduce_sum(each * w) for each, w in zip(made, weights, strict=True)])
        return tf.gradients(loss, list(tensors))


def _in_order(verb: str) -> Callable[..., Any]:
    def call(self: TensorFlowSession, *args: Any, **options: Any) -> Any:
        import tensorflow as tf

        with tf.control_dependencies(self._before):
            made = getattr(super(TensorFlowSession, self), verb)(*args, **options)
        self._before = list(made) if isinstance(made, (list, tuple)) else [made]
        return made

    return call


for _verb in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter"):
    setattr(TensorFlowSession, _verb, _in_order(_verb))
    if hasattr(Mode, f"grouped_{_verb}"):
        setattr(TensorFlowSession, f"grouped_{_verb}", _in_order(f"grouped_{_verb}"))


class Jax(_Framework):
    """At once."""

    name, module = "jax", "workbench.jax"
    lacks = frozenset({"sparse"})

    @property
    def dtypes(self) -> Sequence[str]:
        """64 bits only where JAX is told so."""
        import jax

        return [name for name in DTYPES if jax.config.jax_enable_x64 or not name.endswith("64")]

    @property
    def moved(self) -> Sequence[str]:
        """Likewise."""
        import jax

        return [*self.dtypes, *(MOVED if jax.config.jax_enable_x64 else ("uint32", "complex64"))]

    def tensor(self, array: Array) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(array)

    def gradients(self, program: Program, arrays: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        import jax

        def loss(*tensors: Any) -> Any:
            return sum((each * w).sum() for each, w in zip(program(self, *tensors), weights, strict=True))

        return self.run(lambda _, *tensors: jax.grad(loss, tuple(range(len(tensors))))(*tensors), *arrays)

    def reducer(self, compression: str = "none", **options: Any) -> Step:
        from workbench.jax.tensors import BRIDGE

        return BridgeStep(self, BRIDGE, getattr(self.hvd.Compression, compression), options)


class JaxJit(Jax):
    """Within ``jit``, where all shapes are known before the run."""

    name = "jit"
    lacks = frozenset({"sparse", "unknown"})
    dtypes = IN_GRAPHS
    moved = (*IN_GRAPHS, "complex64")
    errors = (Exception,)

    def run(self, program: Program, *arrays: Array) -> list[Array]:
        return [self.array(each) for each in self.repeated(program, {}, (), arrays)]

    def repeated(self, program: Program, graphs: dict[Any, Any], key: Any, arrays: Sequence[Array]) -> list[Any]:
        import jax

        function = graphs.setdefault(key, jax.jit(lambda *tensors: list(program(self, *tensors))))
        return jax.block_until_ready(function(*map(self.tensor, arrays)))


class Keras(_Framework):
    """Values, on the backend that this process' Keras has."""

    name, module = "keras", "workbench.keras"
    lacks = frozenset({"gradients", "sparse"})

    @property
    def dtypes(self) -> Sequence[str]:
        """Those of the backend, but bfloat16: these are numpy's values."""
        return [name for name in DTYPES if name != "bfloat16"]

    @property
    def moved(self) -> Sequence[str]:
        """Not every backend has more."""
        return self.dtypes

    def reducer(self, compression: str = "none", **options: Any) -> Step:
        from workbench.keras.backend import bridge

        return BridgeStep(_KerasTensors(), bridge(), getattr(self.hvd.Compression, compression), options)


class _KerasTensors(Keras):
    """For gradients, which are the backend's tensors."""

    def tensor(self, array: Array) -> Any:
        import keras

        return keras.ops.convert_to_tensor(array, array.dtype.name)

    def array(self, tensor: Any) -> Array:
        import keras

        return keras.ops.convert_to_numpy(tensor)


class MXNet(_Framework):
    """``mx.nd``, in the environment that has MXNet."""

    name, module = "mxnet", "workbench.mxnet"
    lacks = frozenset({"gradients", "lists", "compression", "bool"})
    dtypes = moved = tuple(name for name in DTYPES if name not in ("bool", "bfloat16"))

    def tensor(self, array: Array) -> Any:
        import mxnet as mx

        return mx.nd.array(array, dtype=array.dtype)

    def array(self, tensor: Any) -> Array:
        return tensor.asnumpy()


# JAX refuses to call the host from a compiled function among threads.
AMONG_THREADS: list[type[Mode]] = [Mode, Torch, TensorFlow, TensorFlowFunction, TensorFlowSession, Jax, Keras]
MODES: list[type[Mode]] = [*AMONG_THREADS, JaxJit]

__all__ = ["AMONG_THREADS", "DTYPES", "MODES", "MXNet", "Mode", "dtype_of", "wide"]
