"""How the verbs are run on MXNet's arrays. The verbs themselves are in ``verbs.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np

from workbench.job import calls
from workbench.job.calls import Call
from workbench.mxnet.tensors import array_of, fill, new_like


class InvalidArgumentError(ValueError, mx.base.MXNetError):  # type: ignore[misc]  # untyped
    """Arguments that do not fit: Horovod's scripts catch MXNet's error, which is a RuntimeError."""


@contextmanager
def _as_mxnet_s() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def run(call: Call, tensors: Sequence[Any]) -> list[Any]:
    """The results, in new arrays."""
    if not tensors:
        return []
    with _as_mxnet_s():
        arrays = call([array_of(each) for each in tensors])
    return [new_like(array, tensor) for array, tensor in zip(arrays, tensors, strict=True)]


def run_in_place(call: Call, tensors: Sequence[Any]) -> list[Any]:
    """The arrays themselves, with the results in them."""
    if tensors:
        with _as_mxnet_s():
            arrays = call([array_of(each) for each in tensors])
        for array, tensor in zip(arrays, tensors, strict=True):
            fill(tensor, array)
    return list(tensors)


def exchange(call: Call, tensor: Any) -> Any:
    """Alltoall: the rows received; with splits a pair of these and the number received from each rank."""
    with _as_mxnet_s():
        received, counts = call([array_of(tensor)])
    result = new_like(received, tensor)
    return result if call.splits is None else (result, mx.nd.array(counts, dtype=counts.dtype))


def rows_of(splits: Any) -> tuple[int, ...] | None:
    """The splits as numbers; an array must have int32, as Horovod has it."""
    if isinstance(splits, mx.nd.NDArray):
        if splits.dtype != np.int32:
            raise InvalidArgumentError(f"splits must be int32, not {np.dtype(splits.dtype)}: splits.astype('int32').")
        splits = splits.asnumpy()
    return calls.rows_of(splits)


__all__ = ["InvalidArgumentError"]
