"""torch tensor ↔ the array that travels.

A tensor in the CPU's memory travels as a numpy array over it, one on this rank's GPU as a cupy array over it: nothing
is copied. Where GPUs have no backend (see :mod:`workbench.backends.gpu_select`) a copy on the host travels instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.context import HOLDER
from workbench.errors import UnsupportedTensorError

Array = NDArray[Any]


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of the tensor's dtype: ``"float32"``, ``"bfloat16"``, …."""
    return str(tensor.dtype).removeprefix("torch.")


def view(tensor: torch.Tensor) -> Array:
    """An array over the same memory; bfloat16, which numpy lacks, as uint16.

    Raises:
        UnsupportedTensorError: not contiguous, not dense, or on another GPU than this rank's.
    """
    if tensor.layout is not torch.strided:
        raise UnsupportedTensorError(f"A tensor of layout {tensor.layout} cannot travel. Call to_dense() first.")
    if not tensor.is_contiguous():
        raise UnsupportedTensorError(
            f"Tensor is required to be contiguous. This one has shape {list(tensor.shape)} and strides "
            f"{list(tensor.stride())}: call .contiguous() on it first."
        )
    if (gpu := _gpu_of(tensor)) is not None:
        kind = "uint16" if tensor.dtype is torch.bfloat16 else dtype_name(tensor)
        return gpu.over(tensor.data_ptr(), tensor.shape, kind, tensor)  # type: ignore[no-any-return]
    plain = tensor.detach() if tensor.requires_grad else tensor  # detach() lets another thread have its turn
    return plain.view(torch.int16).numpy().view(np.uint16) if tensor.dtype is torch.bfloat16 else plain.numpy()


def tensor_of(array: Array, like: torch.Tensor) -> torch.Tensor:
    """A tensor over the array's memory, with the dtype and on the device of ``like``."""
    if not isinstance(array, np.ndarray):
        return _over_gpu(array, like)
    if like.dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(array).to(like.device)


def in_place(tensor: torch.Tensor) -> tuple[Array, Callable[[Any], torch.Tensor]]:
    """An array to reduce, and a function that afterwards gives the tensor with the result in it.

    The array is the tensor's own memory, or else a copy on the host, which the function copies back.
    """
    if tensor.device.type == "cpu" or on_gpu(tensor):
        return view(tensor), lambda _: tensor
    if not tensor.is_contiguous():
        view(tensor)  # raises, with the text that says what to do
    host = tensor.detach().cpu()

    def back(_: Any) -> torch.Tensor:
        with torch.no_grad():
            return tensor.copy_(host)

    return view(host), back


def about(tensor: torch.Tensor) -> dict[str, Any]:
    """What :func:`workbench.api.entry` must know of a tensor beside its array."""
    found: dict[str, Any] = {"dtype": dtype_name(tensor), "device": tensor.device.type}
    if (gpu := _gpu_of(tensor)) is not None:
        found |= {"device": "cuda", "caller": TorchCaller(gpu)}
    return found


def on_gpu(tensor: torch.Tensor) -> bool:
    """Does it lie on this rank's GPU, and is it reduced there?"""
    return _gpu_of(tensor) is not None


def _gpu_of(tensor: torch.Tensor) -> Any:
    """This rank's GPU, if the tensor lies there and GPUs have a backend; else None.

    Raises:
        UnsupportedTensorError: it lies on another GPU.
    """
    if not tensor.is_cuda:
        return None
    context = HOLDER.get()
    gpu = context.engine.sets.gpu
    if gpu is not None and tensor.device.index != gpu.index:
        raise UnsupportedTensorError(
            f"The tensor lies on GPU {tensor.device.index}, but rank {context.world.rank} reduces on GPU {gpu.index}, "
            f"by its local rank. Call torch.cuda.set_device({gpu.index}) before tensors and models are made."
        )
    return gpu


def _over_gpu(array: Any, like: torch.Tensor) -> torch.Tensor:
    if not array.size:
        return torch.empty(array.shape, dtype=like.dtype, device=like.device)
    # As bytes: DLPack has no bfloat16 of cupy's, and not every version of both knows every other dtype.
    return torch.from_dlpack(array.reshape(-1).view(np.uint8)).view(like.dtype).reshape(array.shape)


class TorchCaller:
    """torch's streams and memory; see :class:`workbench.backends.gpu.Caller`."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu

    def stream(self) -> tuple[int, Any]:
        """The current one of this rank's GPU."""
        stream = torch.cuda.current_stream(self._gpu.index)
        return int(stream.cuda_stream), stream

    def empty(self, shape: Sequence[int], dtype: Any, stream: int) -> Array:
        """From torch's pool, which hands memory out in the order of a stream."""
        kind, at = getattr(torch, np.dtype(dtype).name), self._gpu.index
        # Address 0 is the default stream's, and to ExternalStream it means any.
        order = torch.cuda.ExternalStream(stream, at) if stream else torch.cuda.default_stream(at)
        with torch.cuda.stream(order):
            tensor = torch.empty(tuple(shape), dtype=kind, device=torch.device("cuda", at))
        return self._gpu.over(tensor.data_ptr(), shape, dtype, tensor)  # type: ignore[no-any-return]
