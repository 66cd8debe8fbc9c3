"""Memory that several ranks can reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench import api
from workbench.api import Array
from workbench.context import HOLDER
from workbench.process_sets import ProcessSet, global_process_set


def empty(shape: int | Sequence[int], dtype: str = "float32") -> Array:
    """An array in memory that all ranks of the machine can reach: reduced in place there, nothing is copied.

    In-place verbs, such as ``workbench.torch.allreduce_`` on ``torch.from_numpy`` of it, copy nothing where
    every rank's tensor is in such memory; without shared memory it is an ordinary array. Its values are arbitrary.

    Example:
        >>> api.run_threads(2, lambda: empty((2, 3)).shape)
        [(2, 3), (2, 3)]
    """
    itemsize, size = np.dtype(dtype).itemsize, int(np.prod(shape))
    return HOLDER.get().sets.everybody.shared.allocate(size * itemsize).view(dtype).reshape(shape)


def zeros(length: int, dtype: str = "float32") -> Array:
    """As :func:`empty`, all 0."""
    array = empty(length, dtype)
    array[...] = 0
    return array


def shared(length: int, dtype: str, process_set: ProcessSet = global_process_set) -> Array | None:
    """One array, the same memory on all ranks, or None where they have no memory in common. All ranks call it.

    It is kept until the job ends.
    """
    first = (process_set.ranks or [0])[0]
    backend = HOLDER.get().sets.backend(process_set.process_set_id or 0)
    if backend is None or backend.size == 1:
        return None
    nbytes = length * np.dtype(dtype).itemsize
    place = np.array([backend.shared.offer(nbytes) if api.rank() == first else 0])
    place = api.broadcast(place, first, "shared memory", process_set)
    memory = backend.shared.reach(0, int(place[0]), nbytes)
    return None if memory is None else memory.view(dtype)


__all__ = ["empty", "shared", "zeros"]
