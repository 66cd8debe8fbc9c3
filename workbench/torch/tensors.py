"""torch tensor ↔ the array that the engine takes.

For a tensor in the CPU's memory it is a numpy array over it, for one on this rank's GPU a cupy array over it: nothing
is copied. Where GPUs have no backend (see :mod:`workbench.transport.gpu.select`) it is a copy on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.collectives.reduction import wire_dtype
from workbench.core.backend.memory import RESULTS
from workbench.errors import UnsupportedTensorError
from workbench.job.context import HOLDER

Array = NDArray[Any]


_BITS = {
    torch.bfloat16: torch.int16,
    **{dtype: torch.uint8 for name, dtype in vars(torch).items() if name.startswith("float8_")},
}
"""Of the dtypes that numpy lacks: those of their bits."""
_NAMES = {each: str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)}


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of the tensor's dtype: ``"float32"``, ``"bfloat16"``, …."""
    return _NAMES[tensor.dtype]


def view(tensor: torch.Tensor) -> Array:
    """An array over the same memory; bfloat16 and others, which numpy lacks, as unsigned integers.

    Raises:
        UnsupportedTensorError: not contiguous, not dense, of a dtype that none has, or on another GPU than this rank's.
    """
    if tensor.layout is not torch.strided:
        raise UnsupportedTensorError(f"A tensor of layout {tensor.layout} cannot be sent. Call to_dense() first.")
    if not tensor.is_contiguous():
        raise UnsupportedTensorError(
            f"Tensor is required to be contiguous. This one has shape {list(tensor.shape)} and strides "
            f"{list(tensor.stride())}: call .contiguous() on it first."
        )
    if (gpu := _gpu_of(tensor)) is not None:
        return gpu.over(tensor.data_ptr(), tensor.shape, wire_dtype(dtype_name(tensor)).name, tensor)  # type: ignore[no-any-return]
    plain = tensor.detach() if tensor.requires_grad else tensor  # detach() lets another thread have its turn
    if (bits := _BITS.get(tensor.dtype)) is not None:
        return plain.view(bits).numpy().view(wire_dtype(dtype_name(tensor)))
    try:
        return plain.numpy()
    except TypeError:
        raise UnsupportedTensorError(f"A tensor of dtype {tensor.dtype} cannot be sent. Convert it first.") from None


def fresh_like(like: torch.Tensor) -> torch.Tensor:
    """As ``torch.empty_like`` of a contiguous tensor; a large one on the CPU in memory that is used again."""
    if like.numel() * like.element_size() < RESULTS.least_bytes or like.device.type != "cpu":
        return torch.empty_like(like)
    return tensor_of(RESULTS.empty(like.shape, wire_dtype(dtype_name(like))), like)  # no view to autograd


def tensor_of(array: Array, like: torch.Tensor) -> torch.Tensor:
    """A tensor over the array's memory, with the dtype and on the device of ``like``."""
    if not isinstance(array, np.ndarray):
        return _over_gpu(array, like)
    if (bits := _BITS.get(like.dtype)) is not None:
        signed = array.view(np.int16) if bits is torch.int16 else array  # torch before 2.5 has no other 16 bits
        return torch.from_numpy(signed).view(like.dtype).to(like.device)
    return torch.from_numpy(array).to(like.device)


def in_place(tensor: torch.Tensor) -> tuple[Array, Callable[[Any], torch.Tensor]]:
    """An array to reduce, and a function that afterwards gives the tensor with the result in it.

    The array is the tensor's own memory, or else a copy on the host, which the function copies back.
    """
    as_stored = not (tensor.is_conj() or tensor.is_neg())  # else what is in memory is yet to be conjugated or negated
    if as_stored and (tensor.is_cpu or on_gpu(tensor)):
        return view(tensor), lambda _: tensor
    if not tensor.is_contiguous():
        view(tensor)  # raises, with the text that says what to do
    host = tensor.detach().cpu().resolve_conj().resolve_neg()

    def back(_: Any) -> torch.Tensor:
        with torch.no_grad():
            return tensor.copy_(host)

    return view(host), back


def about(tensor: torch.Tensor) -> dict[str, Any]:
    """What :func:`workbench.job.api.entry` must know of a tensor beside its array."""
    found: dict[str, Any] = {"dtype": dtype_name(tensor), "device": tensor.device.type}
    if (gpu := _gpu_of(tensor)) is not None:
        found |= {"device": "cuda", "caller": TorchCaller(gpu)}
    return found


def on_gpu(tensor: torch.Tensor) -> bool:
    """Is it in the memory of this rank's GPU, and reduced there?"""
    return _gpu_of(tensor) is not None


def fits_a_bucket(param: torch.Tensor) -> bool:
    """Can a gradient of it be a part of a bucket: floats without gaps, in memory where this rank reduces?"""
    dense = param.is_contiguous() or _dense(param)
    return (on_gpu(param) or param.device.type == "cpu") and dense and param.is_floating_point() and param.numel() > 0


def _dense(param: torch.Tensor) -> bool:
    """Not contiguous, but a permutation of something that is, as channels_last."""
    order = sorted(zip(param.stride(), param.shape, strict=True), reverse=True)
    expected = int(np.prod([size for _, size in order]))
    for stride, size in order:
        if size == 1:
            continue
        expected //= size
        if stride != expected:
            return False
    return True


def _gpu_of(tensor: torch.Tensor) -> Any:
    """This rank's GPU, if the tensor lies there and GPUs have a backend; else None.

    Raises:
        UnsupportedTensorError: it lies on another GPU.
    """
    if not tensor.is_cuda:
        return None
    context = HOLDER.get()
    gpu = context.sets.gpu
    if gpu is not None and tensor.device.index != gpu.index:
        raise UnsupportedTensorError(
            f"The tensor is on GPU {tensor.device.index}, but rank {context.world.rank} reduces on GPU {gpu.index}, "
            f"by its local rank. Call torch.cuda.set_device({gpu.index}) before tensors and models are made."
        )
    return gpu


def _over_gpu(array: Any, like: torch.Tensor) -> torch.Tensor:
    if not array.size:
        return torch.empty(array.shape, dtype=like.dtype, device=like.device)
    # As bytes: DLPack has no bfloat16 of cupy's, and not every version of both knows every other dtype.
    return torch.from_dlpack(array.reshape(-1).view(np.uint8)).view(like.dtype).reshape(array.shape)


class TorchCaller:
    """torch's streams and memory; see :class:`workbench.transport.gpu.device.Caller`."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu

    def stream(self) -> tuple[int, Any]:
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
