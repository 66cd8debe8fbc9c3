"""torch tensor ↔ the array that travels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.errors import UnsupportedTensorError

Array = NDArray[Any]


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of the tensor's dtype: ``"float32"``, ``"bfloat16"``, …."""
    return str(tensor.dtype).removeprefix("torch.")


def view(tensor: torch.Tensor) -> Array:
    """A numpy array over the same memory; bfloat16, which numpy lacks, as uint16.

    Raises:
        UnsupportedTensorError: not contiguous, not dense, or not in the CPU's memory.
    """
    if tensor.layout is not torch.strided:
        raise UnsupportedTensorError(f"A tensor of layout {tensor.layout} cannot travel. Call to_dense() first.")
    if not tensor.is_contiguous():
        raise UnsupportedTensorError(
            f"Tensor is required to be contiguous. This one has shape {list(tensor.shape)} and strides "
            f"{list(tensor.stride())}: call .contiguous() on it first."
        )
    plain = tensor.detach() if tensor.requires_grad else tensor  # detach() lets another thread have its turn
    return plain.view(torch.int16).numpy().view(np.uint16) if tensor.dtype is torch.bfloat16 else plain.numpy()


def tensor_of(array: Array, like: torch.Tensor) -> torch.Tensor:
    """A tensor over the array's memory, with the dtype and on the device of ``like``."""
    if like.dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(array).to(like.device)


def in_place(tensor: torch.Tensor) -> tuple[Array, Callable[[Any], torch.Tensor]]:
    """An array to reduce, and a function that afterwards gives the tensor with the result in it.

    On the CPU the array is the tensor's own memory. Elsewhere it is a copy, which the function copies back.
    """
    if tensor.device.type == "cpu":
        return view(tensor), lambda _: tensor
    if not tensor.is_contiguous():
        view(tensor)  # raises, with the text that says what to do
    host = tensor.detach().cpu()

    def back(_: Any) -> torch.Tensor:
        with torch.no_grad():
            return tensor.copy_(host)

    return view(host), back
