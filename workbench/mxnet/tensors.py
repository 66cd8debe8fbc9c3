"""MXNet's arrays as numpy's, and back.

MXNet computes in the background: an operation returns before it is done. ``asnumpy`` waits for whoever writes the
array, and :func:`fill` for whoever reads it. So what is sent is ready, and nobody else's.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from workbench.core.backend.base import Array
from workbench.training.compression import Compression as Casts

Compression = Casts.casting(
    is_wider=lambda tensor, dtype: tensor.dtype in (np.float32, np.float64),
    cast=lambda tensor, dtype: tensor.astype(dtype),
    fp16="float16",
)


def array_of(tensor: Any) -> Array:
    """A copy of the tensor's values, when they are there.

    Raises:
        TypeError: no dense ``NDArray``.
    """
    if not isinstance(tensor, mx.nd.NDArray) or tensor.stype != "default":
        kind = getattr(tensor, "stype", type(tensor).__name__)
        raise TypeError(f"This takes dense NDArrays, not {kind}: use tensor.tostype('default') or mx.nd.array(tensor).")
    return tensor.asnumpy()  # type: ignore[no-any-return]


def new_like(array: Array, tensor: Any) -> Any:
    """A new tensor with these values: ``mx.nd`` or ``mx.np``, and on the device, as ``tensor`` is."""
    new = mx.nd.array(array, ctx=tensor.context, dtype=array.dtype)
    return new.as_np_ndarray() if isinstance(tensor, mx.np.ndarray) else new


def fill(tensor: Any, array: Array) -> None:
    """Give a tensor these values, in place."""
    tensor._sync_copyfrom(array)  # what tensor[:] = array comes to, but for no dimension at all
