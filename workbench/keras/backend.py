"""Keras' three backends behind one face: how tensors come to the host and back, how variables are read and set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import keras
import numpy as np
from ml_dtypes import bfloat16

from workbench.errors import UnsupportedTensorError
from workbench.runtime.messages import Kind
from workbench.runtime.pending import Array
from workbench.training.calls import Call
from workbench.training.reducer import Bridge, DenseGradients, Spec

if not keras.__version__.startswith("3."):
    raise ImportError(f"workbench.keras needs Keras 3, not {keras.__version__}: install TensorFlow 2.16 or later.")


class TorchBridge(DenseGradients):
    """For Keras on torch, which is always eager; see :class:`workbench.training.reducer.Bridge`."""

    def on_host(
        self, function: Callable[[list[Array]], list[Array]], tensors: Sequence[Any], results: Sequence[Spec]
    ) -> list[Any]:
        """Call it now; ``torch.compile`` leaves it out."""
        import torch

        from workbench.torch.tensors import in_place, tensor_of

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def run(inputs: Sequence[Any]) -> list[Any]:
            # in_place() gives bfloat16 as bits; as numbers they can be added up and rounded.
            arrays = [(each, in_place(each.detach().contiguous())[0]) for each in inputs]
            return function([bits.view(bfloat16) if each.dtype is torch.bfloat16 else bits for each, bits in arrays])

        like = {name: torch.empty(0, dtype=getattr(torch, name), device=tensors[0].device) for name, _ in results}
        return [tensor_of(each, like[name]) for each, (name, _) in zip(run(tensors), results, strict=True)]

    def spec(self, tensor: Any) -> Spec:
        """dtype and shape."""
        return keras.backend.standardize_dtype(tensor.dtype), tuple(tensor.shape)

    def scaled(self, gradient: Any, factor: float) -> Any:
        """In its own dtype."""
        return gradient * factor


@cache
def bridge() -> Bridge:
    """The bridge of the backend that Keras runs on.

    Raises:
        UnsupportedTensorError: a backend that cannot train.
    """
    if keras.backend.backend() == "tensorflow":
        from workbench.tensorflow.tensors import BRIDGE as TENSORFLOW

        return TENSORFLOW
    if keras.backend.backend() == "jax":
        from workbench.jax.tensors import BRIDGE as JAX

        return JAX
    if keras.backend.backend() == "torch":
        return TorchBridge()
    raise UnsupportedTensorError(f"Keras runs on {keras.backend.backend()}: use tensorflow, torch or jax.")


def own_errors() -> AbstractContextManager[None]:
    """Within the block, an error that the backend made of ours is ours again."""
    if keras.backend.backend() == "tensorflow":
        from workbench.tensorflow.tensors import own_errors as tensorflow

        return tensorflow()
    if keras.backend.backend() == "jax":
        from workbench.jax.tensors import own_errors as jax

        return jax()
    return nullcontext()


def state_of(model: Any, optimizer: Any = None) -> list[Any]:
    """All that training changes: the model's weights, and the optimizer's variables, if it is built."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # during fit() JAX's trainer has the values somewhere else
    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    return [*model.weights, *(optimizer.variables if optimizer is not None and optimizer.built else [])]


def values_of(variables: Sequence[Any]) -> list[Array]:
    """Copies of their values."""
    return [np.array(keras.ops.convert_to_numpy(each.value)) for each in variables]


def assign(variables: Sequence[Any], values: Sequence[Array]) -> None:
    """Set them."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def broadcast_variables(variables: Sequence[Any], root_rank: int) -> None:
    """The root's values into these Keras variables: the same ones in the same order on every rank."""
    if variables:
        assign(variables, Call(Kind.BROADCAST, "broadcast_variables", root=root_rank)(values_of(variables)))


__all__ = ["TorchBridge", "assign", "bridge", "broadcast_variables", "own_errors", "state_of", "values_of"]
