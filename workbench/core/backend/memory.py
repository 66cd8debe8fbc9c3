"""The memory that a backend's arrays are in: the protocol, and its null implementation, the host's.

:class:`PrivateMemory` is the null implementation of :class:`workbench.core.backend.base.SharedMemory`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
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


class HostMemory:
    """Nothing is asynchronous here; see :class:`Memory`."""

    align = 1

    def using(self, arrivals: Sequence[Any], arrays: Sequence[Array | None]) -> AbstractContextManager[None]:
        """Arrays are there when they are submitted, and results when the call returns."""
        return nullcontext()

    def empty(self, shape: Sequence[int], dtype: Any, arrival: Any) -> Array:
        return np.empty(shape, dtype)

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
