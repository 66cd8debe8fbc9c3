"""The protocols of the data plane. ``Link`` (rank, size, sendrecv) stands beside the algorithms that use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import NDArray

from workbench.collectives import Link, Reduction, Traffic

__all__ = ["Array", "Arrival", "Backend", "Buffer", "Link", "Memory", "OwnMemory", "Reduction", "Traffic"]

Array = NDArray[Any]


class Buffer(Protocol):
    """Memory that the backend can reduce where it lies."""

    @property
    def array(self) -> NDArray[Any]:
        """The memory as a one-dimensional array of bytes (uint8)."""

    def release(self) -> None:
        """Give the memory back; ``array`` is not touched afterwards."""


class Arrival(Protocol):
    """How an entry's arrays came: in the order of a stream of a GPU, on which they are made and used."""

    def join(self) -> None:
        """Make what the calling thread does on the GPU from now on wait until the result is there."""


class Memory(Protocol):
    """Where a backend's arrays lie."""

    @property
    def align(self) -> int:
        """At a multiple of so many bytes arrays begin in a fusion buffer."""

    def using(self, arrivals: Sequence[Arrival | None], arrays: Sequence[Array | None]) -> AbstractContextManager[None]:
        """What the block does comes after what makes the arrays of a batch and before what uses them."""

    def empty(self, shape: Sequence[int], dtype: Any, arrival: Arrival | None) -> Array:
        """New memory for a result, within :meth:`using`."""

    def copy(self, pairs: Sequence[tuple[Array | None, Array]]) -> None:
        """Copy many arrays; each pair is (source, or None for zeros, target), one-dimensional and contiguous."""


class Backend(Protocol):
    """Executes what the coordinator decided. Only the engine's thread calls it, but for ``allocate`` and ``place``.

    Arrays are one-dimensional, contiguous and of the same dtype on every rank. All lengths count elements.
    """

    @property
    def name(self) -> str:
        """MPI, GLOO, …, as the timeline writes it."""

    @property
    def rank(self) -> int:
        """This rank among those that the backend connects."""

    @property
    def size(self) -> int:
        """How many ranks the backend connects."""

    @property
    def memory(self) -> Any:
        """Where its arrays lie, a :class:`Memory`."""

    def index(self, rank: int) -> int:
        """The number among ``size`` of a global rank."""

    def subset(self, ranks: Sequence[int]) -> Backend:
        """The backend of a process set that this rank belongs to; closed with this one."""

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """Reduce in place; the same bits on every rank.

        Args:
            array: this rank's.
            reduction: what is done to it.
            places: by rank, what ``place`` said of its array; empty where one of them is -1.
        """

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """Fill ``array``; this rank's own part is in its place already."""

    def broadcast(self, array: Array, root: int) -> Traffic:
        """Copy from ``root``, in place."""

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """Piece i of ``send`` goes to rank i; piece i of ``recv`` comes from it."""

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, places: Sequence[int] = ()
    ) -> Traffic:
        """Reduce; this rank's part of ``array`` holds the result, the rest is scratch."""

    def buffer(self, nbytes: int) -> Buffer:
        """Memory for a batch of ``nbytes`` bytes; one at a time is in use."""

    def allocate(self, nbytes: int) -> Array:
        """Bytes (uint8) that ``allreduce`` reduces where they lie, if the backend can. Any thread may call it.

        Freed with the last array over them.
        """

    def place(self, array: Array) -> int:
        """Where in memory that all ranks can reach this contiguous array lies; -1 if it does not."""

    def offer(self, nbytes: int) -> int:
        """Make memory for all ranks, which is kept until the end, and tell its place; -1 if it cannot be."""

    def reach(self, rank: int, place: int, nbytes: int) -> Array | None:
        """The memory at a place that ``rank`` has told; None if it cannot be reached from here."""

    def tick(self, function: Callable[[], None]) -> None:
        """Have ``function`` called some times a second amid long waits; it may raise to end them."""

    def close(self, clean: bool = True) -> None:
        """Give everything back. ``clean``: all ranks close at the same point, so they may talk once more."""


class OwnMemory:
    """Of backends whose ranks reach none of each other's memory."""

    def place(self, array: Array) -> int:
        """Nobody else can reach it."""
        return -1

    def offer(self, nbytes: int) -> int:
        """Nobody else could reach it."""
        return -1

    def reach(self, rank: int, place: int, nbytes: int) -> Array | None:
        """Nothing of the others' memory."""
        return None
