"""How the verbs on arrays are run: at once or with a handle, into new memory or in place.

The verbs themselves are in ``array_verbs.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.handle import GroupHandle, Handle
from workbench.core.pending import Entry
from workbench.errors import UnsupportedTensorError
from workbench.job.arrays import given, on_gpu
from workbench.job.calls import Call
from workbench.job.entries import entry

Array = NDArray[Any]


def run(call: Call, arrays: Sequence[ArrayLike]) -> list[Array]:
    """The results, in new memory."""
    return call(arrays)


def run_in_place(call: Call, arrays: Sequence[Array]) -> list[Array]:
    """The arrays themselves, with the results in them."""
    return [handle.wait() for handle in call.begin(arrays, partial(_entry_in_place, call), at_once=True)]


def begin(call: Call, arrays: Sequence[ArrayLike]) -> GroupHandle:
    """As :func:`run`, without waiting."""
    return GroupHandle(call.begin(arrays, call.entry))


def begin_in_place(call: Call, arrays: Sequence[Array]) -> GroupHandle:
    """As :func:`run_in_place`, without waiting."""
    return GroupHandle(call.begin(arrays, partial(_entry_in_place, call)))


def exchange(call: Call, array: ArrayLike) -> tuple[Array, Array]:
    """Alltoall: the rows received, and how many came from each rank."""
    rows, counts = call([array])
    return rows, counts


def poll(handle: Handle | GroupHandle) -> bool:
    """True when :func:`synchronize` would not block."""
    return handle.poll()


def synchronize(handle: Handle | GroupHandle) -> Any:
    """Wait for a handle and return its result; of a group, the list of results."""
    return handle.wait()


def _entry_in_place(call: Call, array: Any, name: str | None, fields: dict[str, Any]) -> Entry:
    _must_be_writable(array)
    source, about = given(array)
    return entry(call.kind, source, name, target=source, convert=lambda _: array, **about, **fields)


def _must_be_writable(array: Any) -> None:
    """Refuse what :func:`given` would copy, and what is only to be read: the result would not be in the array."""
    if not isinstance(array, np.ndarray) and not on_gpu(array):
        why = f"a {type(array).__name__}"
    elif not array.flags.c_contiguous:
        why = f"one of strides {array.strides}"
    elif isinstance(array, np.ndarray) and not (array.flags.writeable and array.dtype.isnative):
        why = "one with another byte order" if array.flags.writeable else "one that is read-only"
    else:
        return
    raise UnsupportedTensorError(
        f"In place an array must be writable and contiguous, and have this machine's byte order. This is {why}: make "
        "one with np.array(x, order='C'), or call the verb without `_` at its end, which returns a new array."
    )
