"""Arrays that the caller gave, on the host or on this rank's GPU, as the engine takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.core.backend.base import Array
from workbench.errors import UnsupportedTensorError
from workbench.job.context import HOLDER

_CUDA = 2  # DLPack's number


def given(array: Any) -> tuple[Array, dict[str, Any]]:
    """The argument as a contiguous numpy or cupy array, and further arguments for :func:`workbench.job.entries.entry`.

    Raises:
        UnsupportedTensorError: it lies on a GPU that cannot be used, or says more than its values.

    Example:
        >>> given([1.0, 2.0])
        (array([1., 2.]), {})
    """
    if not on_gpu(array):
        return plain(array), {}
    from workbench.transport.gpu.device import CUPY

    gpu = HOLDER.get().sets.gpu
    if gpu is None:
        raise UnsupportedTensorError(
            "The array is in GPU memory, but the ranks have no GPU backend (`workbench doctor` says why). Copy it "
            "to the host: array.get()."
        )
    if array.device.id != gpu.index:
        raise UnsupportedTensorError(
            f"The array is on GPU {array.device.id}, but rank {HOLDER.get().rank} reduces on GPU {gpu.index}, by its "
            f"local rank. Call cupy.cuda.Device({gpu.index}).use() before arrays are made."
        )
    contiguous = array if array.flags.c_contiguous else array.copy(order="C")
    return contiguous, {"device": "cuda", "caller": CUPY}


def plain(array: Any) -> Array:
    """The values of what numpy can read, contiguous, in numpy's own class and in this machine's byte order.

    Raises:
        UnsupportedTensorError: a mask, or arithmetic of its own (a unit's), would be lost.

    Example:
        >>> plain(np.array([500], ">i4"))
        array([500], dtype=int32)
    """
    if isinstance(array, np.ma.MaskedArray):
        raise UnsupportedTensorError(
            "A masked array cannot be sent: its mask would be lost. Send array.filled(value), or array.data and "
            "np.ma.getmaskarray(array)."
        )
    if isinstance(array, np.ndarray) and type(array).__array_ufunc__ is not np.ndarray.__array_ufunc__:
        raise UnsupportedTensorError(
            f"A {type(array).__name__} cannot be sent: it has its own arithmetic (for example units), which would be "
            "lost. Send np.asarray(array) if the values mean the same on all ranks."
        )
    made = np.asarray(array, order="C")
    return made if made.dtype.isnative else made.astype(made.dtype.newbyteorder("="))


def on_gpu(array: Any) -> bool:
    """Is it an array of cupy's?"""
    return not isinstance(array, np.ndarray) and hasattr(array, "__cuda_array_interface__") and hasattr(array, "get")


def scaled(array: Any, factor: float) -> Any:
    """``factor`` times an array of floats, in its own dtype; half precision is multiplied in float32, as in reductions.

    Example:
        >>> scaled(np.array([30.0], np.float16), 0.1)
        array([3.], dtype=float16)
    """
    if factor == 1.0 or on_gpu(array):
        return array * factor if factor != 1.0 else array
    wide = array.astype(np.float32) if array.dtype.itemsize == 2 else array
    # An array, also of a gradient without dimensions, whose product is a number.
    return np.asarray(wide * wide.dtype.type(factor)).astype(array.dtype, copy=False)


def borrowed(tensor: Any, dtype: str) -> Array | None:
    """A framework's tensor on this rank's GPU, as an array over the same memory, by DLPack; None for any other tensor.

    Also None for bfloat16, which cupy lacks: such a tensor goes by way of the host.
    """
    gpu = HOLDER.get().sets.gpu
    if gpu is None or dtype == "bfloat16" or tuple(map(int, tensor.__dlpack_device__())) != (_CUDA, gpu.index):
        return None
    import cupy

    with gpu.device:
        return cupy.from_dlpack(tensor)  # type: ignore[no-any-return]
