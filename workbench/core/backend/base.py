"""The protocols of the data plane. ``Link`` (rank, size, sendrecv) is defined with the algorithms that use it.

A :class:`Backend` connects some ranks. It is composed of three parts, each a small protocol with a null implementation:

- :class:`Collectives`: the five verbs that the engine executes. Null: over ``host/single.py``, one rank.
- :class:`SharedMemory`: memory of each rank that the others can access. Null: ``PrivateMemory`` of ``memory.py``.
- :class:`Lifecycle`: ticks during waits, process sets, the end. Null: over ``host/single.py``, nothing to end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from workbench.collectives import Link as Link
from workbench.collectives import Reduction as Reduction
from workbench.collectives import Traffic as Traffic
from workbench.errors import CollectiveError

Array = NDArray[Any]
SLOT_BYTES = 256 << 10
"""Of each rank's memory that all can read, for :mod:`workbench.runtime.control.slots`."""


class Channel(Link, Protocol):
    """A Link that belongs to a backend."""

    name: str
    """MPI, TCP, …: of the backend, as the timeline writes it."""
    tick: Callable[[], None]
    """Called some times a second amid a long wait; it may raise to end it."""

    def close(self, clean: bool = True) -> None:
        """Give the connections back; see :meth:`Lifecycle.close`."""


class Collectives(Protocol):
    """The verbs. Arrays are one-dimensional, contiguous and of one dtype on all ranks; all lengths count elements."""

    def allreduce(
        self, array: Array, reduction: Reduction, offsets: Sequence[int] = (), source: Array | None = None
    ) -> Traffic:
        """Reduce in place; the same bits on every rank.

        Args:
            array: this rank's.
            reduction: what is done to it.
            offsets: by rank, :meth:`SharedMemory.offset` of its array; empty where one of them is -1.
            source: where this rank's values are, if not in ``array``. It is not changed.
        """

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """Fill ``array``; this rank's own part is in its place already."""

    def broadcast(self, array: Array, root: int, source: Array | None = None) -> Traffic:
        """Copy from ``root``, in place.

        Args:
            array: this rank's.
            root: which rank gives the values.
            source: at the root, where the values are, if not in ``array``. It is copied there, too, and not changed.
        """

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """Piece i of ``send`` goes to rank i; piece i of ``recv`` comes from it."""

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, offsets: Sequence[int] = ()
    ) -> Traffic:
        """Reduce; this rank's part of ``array`` holds the result, the rest is scratch."""


class Batches(Protocol):
    """Arrays, many or one, that are reduced where they lie: none is copied before."""

    def takes_batch(self, count: int, nbytes: int) -> bool:
        """Is that faster than packing so many arrays of so many bytes? The same answer on every rank."""

    def allreduce_batch(self, arrays: Sequence[Array], reduction: Reduction, sources: Sequence[Array]) -> None:
        """Reduce ``sources`` into ``arrays``, which may be the same: one-dimensional, of one dtype and length."""

    def spares(self, nbytes: int) -> bool:
        """Does :meth:`reducescatter_into` take arrays of so many bytes? The same answer on every rank."""

    def reducescatter_into(self, out: Array, array: Array, lengths: Sequence[int], reduction: Reduction) -> None:
        """As :meth:`Collectives.reducescatter`, with this rank's part in ``out``; ``array`` stays as it is."""


class Levels(Protocol):
    """Two ways of an allreduce on several machines.

    Attributes:
        on: inside each machine first, then across; else between all ranks at once. It is changed between collectives,
            at the same place in their order on every rank.
    """

    on: bool


class SharedMemory(Protocol):
    """Memory that other ranks reach, so that a collective needs no copy of its own."""

    addresses: tuple[int, int]
    """From where to where it is, in this process."""

    def allocate(self, nbytes: int) -> Array:
        """Bytes (uint8) that ``allreduce`` reduces in place; freed with the last array over them. For any thread."""

    def buffer(self, nbytes: int) -> Array:
        """Bytes for a batch, reduced in place as well. The next call returns the same memory."""

    def lend(self, address: int, nbytes: int, file: int, lives: Callable[[], bool]) -> None:
        """Let the others reach other memory as well, which a file has; see ``OwnArena.lend``. For any thread."""

    def offset(self, array: Array) -> int:
        """Offset of a contiguous array in the memory that all ranks reach; -1 outside of it. For any thread."""


class Lifecycle(Protocol):
    """What happens to a backend between ``init()`` and its end."""

    def tick(self, function: Callable[[], None], /) -> None:
        """Have ``function`` called some times a second amid long waits; it may raise to end them."""

    def subset(self, ranks: Sequence[int], /) -> Backend:
        """The backend of a process set that this rank belongs to. All its ranks call it, with their global numbers."""

    def give_up(self, why: CollectiveError, /) -> None:
        """The job has failed: no other rank changes what is written into this one's arrays from now on.

        Called before the callers of what was in flight get their errors, for they may use the arrays at once. What a
        failed collective has left in an array may still change until it is written to.
        """

    def close(self, clean: bool = True) -> None:
        """Give everything back; a subset gives back what is its own alone.

        Args:
            clean: all ranks close at the same point, so they may talk once more.
        """


@dataclass(frozen=True)
class Backend:
    """Executes what the coordinator decided. Only the engine's thread uses it, but for ``allocate`` and ``offset``.

    Args:
        name: MPI, SHM, NCCL, …, as the timeline writes it.
        rank: this rank's number among ``ranks``.
        ranks: global numbers of the ranks that it connects.
        collectives, shared, life: its three parts.
        memory: of the arrays that it takes; a ``Gpu`` for those on a GPU, hence the type.
        link: messages between two of the ranks; None for arrays on a GPU.
        batches: reduces arrays where they lie; None: many are packed into one, and one is copied.
        levels: chooses between two ways of an allreduce; None where there is only one.
        slots: by rank, :data:`SLOT_BYTES` that it alone writes and all read; empty where not all share memory.
    """

    name: str
    rank: int
    ranks: Sequence[int]
    collectives: Collectives
    shared: SharedMemory
    life: Lifecycle
    memory: Any
    link: Channel | None = None
    batches: Batches | None = None
    levels: Levels | None = None
    slots: Sequence[memoryview] = ()

    @property
    def size(self) -> int:
        return len(self.ranks)
