"""Keras' three backends behind one face: how tensors come to the host and back, and what training changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from ml_dtypes import bfloat16

from workbench.core.backend.base import Array
from workbench.core.messages import Kind
from workbench.errors import UnsupportedTensorError
from workbench.job.calls import Call
from workbench.job.context import HOLDER
from workbench.keras.flavour import LEGACY, assign, keras, variables_of
from workbench.keras.flavour import values_of as values_of
from workbench.training.bridge import Bridge, Spec
from workbench.training.compression import Compression as Casts
from workbench.training.progress import stride
from workbench.training.step_count import note_broadcast


def _compression() -> Casts:
    if LEGACY:
        from workbench.tf import tensors

        return tensors.Compression
    return Casts.casting(
        is_wider=lambda t, dtype: keras.backend.standardize_dtype(t.dtype) in ("float32", "float64"),
        cast=lambda t, dtype: keras.ops.cast(t, keras.backend.standardize_dtype(dtype)),
        fp16="float16",
        bf16="bfloat16",
    )


Compression = _compression()


class TorchBridge(Bridge):
    """For Keras on torch, which is always eager."""

    def eager(self, tensor: Any) -> bool:
        """Unless ``torch.compile`` looks on."""
        import torch

        return not torch.compiler.is_compiling()

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
        return keras.backend.standardize_dtype(tensor.dtype), tuple(tensor.shape)

    def scaled(self, gradient: Any, factor: float) -> Any:
        return gradient * factor

    def sample(self, tensors: Sequence[Any]) -> Any:
        import torch

        flat = [each.detach().flatten() for each in tensors if each.is_floating_point()]
        return torch.cat([torch.zeros(0), *(each[:: stride(len(each))].float().cpu() for each in flat)])


@cache
def bridge() -> Bridge:
    """The bridge of the backend that Keras runs on.

    Raises:
        UnsupportedTensorError: a backend that cannot train.
    """
    if keras.backend.backend() == "tensorflow":
        from workbench.tf.tensors import BRIDGE as TENSORFLOW

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
        from workbench.tf.tensors import own_errors as tensorflow

        return tensorflow()
    if keras.backend.backend() == "jax":
        from workbench.jax.tensors import own_errors as jax

        return jax()
    return nullcontext()


def forget_steps() -> None:
    """Have JAX trace training steps anew.

    It knows a step by the model's method. If an exception, or a variable of a notebook, keeps the step of an earlier
    ``compile()``, JAX runs that one: with the optimizer of then on this rank, and with the new one on others.
    """
    if keras.backend.backend() == "jax":
        import jax

        context = HOLDER.find()
        if context is not None and context.names.users:  # else no optimizer has been traced
            jax.clear_caches()  # type: ignore[no-untyped-call]


def bring_back(model: Any) -> None:
    """During ``fit`` JAX's trainer has the variables' values somewhere else: set them to what they are."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def state_of(model: Any, optimizer: Any = None) -> list[Any]:
    """All that training changes: the model's weights, and the optimizer's variables, if it is built."""
    bring_back(model)
    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    return [*model.weights, *(variables_of(optimizer) if optimizer is not None else [])]


def broadcast_variables(variables: Sequence[Any], root_rank: int) -> None:
    """The root's values into these Keras variables: the same ones in the same order on every rank."""
    if variables:
        assign(variables, Call(Kind.BROADCAST, "broadcast_variables", root=root_rank)(values_of(variables)))
        note_broadcast()
