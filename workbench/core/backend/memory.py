"""The memory that a backend's arrays are in: the protocol, and its null implementation, the host's.

:class:`PrivateMemory` is the null implementation of :class:`workbench.core.backend.base.SharedMemory`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, Protocol

import numpy as np

from workbench.core.backend.base import Array


class Arrival(Protocol):
    """Order of an entry's arrays on a GPU: the stream on which they are made and used."""

    def join(self) -> None:
        """Make what the calling thread does on the GPU from now on wait until the result is there."""


class Memory(Protocol):
    """The kind of memory that a backend's arrays are in: the host's or a GPU's."""

    @property
    def align(self) -> int:
        """Alignment of arrays in a fusion buffer, in bytes."""

    def using(self, arrivals: Sequence[Arrival | None], arrays: Sequence[Array | None]) -> AbstractContextManager[None]:
        """What the block does comes after what makes the arrays of a batch and before what uses them."""

    def empty(self, shape: Sequence[int], dtype: Any, arrival: Arrival | None) -> Array:
        """New memory for a result, within :meth:`using`."""

    def copy(self, pairs: Sequence[tuple[Array | None, Array]]) -> None:
        """Copy many arrays; each pair is (source, or None for zeros, target), one-dimensional and contiguous."""


class ResultMemory:
    """Memory of large results, which is used again when nobody refers to it any more. For any thread.

    The system gives a process memory page by page, and clears each page before. For a large result that takes longer
    than to fill it, most of all after a pause. A size that is asked for only once is not kept.

    Args:
        least_bytes: a smaller result is ordinary memory.
        most_bytes: no more than this is kept unused.

    Example:
        >>> results = ResultMemory(least_bytes=8)
        >>> addresses = [results.empty((2,), "float64").ctypes.data for _ in range(3)]
        >>> addresses[1] == addresses[2]
        True
    """

    def __init__(self, least_bytes: int = 1 << 20, most_bytes: int = 256 << 20) -> None:
        self.least_bytes, self._most_bytes = least_bytes, most_bytes
        self._asked = set[int]()
        self._unused: dict[int, list[Array]] = {}  # by their size
        self._releases = 0

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """As ``numpy.empty``."""
        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < self.least_bytes or dtype.hasobject:
            return np.empty(shape, dtype)
        if nbytes not in self._asked:
            self._asked.add(nbytes)
            return np.empty(shape, dtype)
        try:
            block = self._unused[nbytes].pop()
        except (KeyError, IndexError):
            block = np.empty(nbytes, np.uint8)
        piece: Array = np.frombuffer(block.data, np.uint8)  # not a slice: arrays over it keep *this* object alive
        weakref.finalize(piece, self._give_back, block, self._releases).atexit = False
        result: Array = piece.view(dtype).reshape(shape)
        return result

    def empty_like(self, array: Array) -> Array:
        """As ``numpy.empty_like``, of a GPU's array, too."""
        return self.empty(array.shape, array.dtype) if isinstance(array, np.ndarray) else np.empty_like(array)

    def _give_back(self, block: Array, releases: int) -> None:
        """Runs wherever the last array dies, on any thread, also amid another call of this: so there is no lock."""
        if releases != self._releases:  # what it was for is over
            return
        size, left = block.nbytes, self._most_bytes - block.nbytes
        if sum(nbytes * len(blocks) for nbytes, blocks in self._unused.copy().items()) > left:
            alike = self._unused.get(size, [])
            self._unused = {size: alike}
            if size * len(alike) > left:
                return
        self._unused.setdefault(size, []).append(block)

    def release(self) -> None:
        """Give the system back what is unused, and what is in use as soon as it is not."""
        self._releases += 1
        self._unused = {}
        self._asked.clear()


RESULTS = ResultMemory()
"""Of this process."""


class HostMemory:
    """Nothing is asynchronous here; see :class:`Memory`."""

    align = 1

    def using(self, arrivals: Sequence[Any], arrays: Sequence[Array | None]) -> AbstractContextManager[None]:
        """Arrays are there when they are submitted, and results when the call returns."""
        return nullcontext()

    def empty(self, shape: Sequence[int], dtype: Any, arrival: Any) -> Array:
        return RESULTS.empty(shape, dtype)

    def copy(self, pairs: Sequence[tuple[Array | None, Array]]) -> None:
        for source, target in pairs:
            target[...] = 0 if source is None else source


HOST = HostMemory()


class PrivateMemory:
    """Of ranks that reach nothing of each other's memory; see :class:`workbench.core.backend.base.SharedMemory`.

    Args:
        empty: :meth:`Memory.empty` of where the fusion buffer is to be.
    """

    addresses = (0, 0)

    def __init__(self, empty: Callable[[Sequence[int], Any, None], Array] = HOST.empty) -> None:
        self._empty = empty
        self._buffer: Array | None = None

    def allocate(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def buffer(self, nbytes: int) -> Array:
        """Kept, and grown from batch to batch."""
        if self._buffer is None or self._buffer.nbytes < nbytes:
            self._buffer = self._empty((nbytes,), "uint8", None)
        return self._buffer[:nbytes]

    def lend(self, address: int, nbytes: int, file: int, lives: Callable[[], bool]) -> None:
        """Nobody else can reach it."""

    def offset(self, array: Array) -> int:
        """Nobody else can reach it."""
        return -1
