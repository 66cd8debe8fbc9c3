"""MPI: the data plane where mpiexec or srun started the ranks.

A blocking MPI call can be neither interrupted nor ended, and it burns a core. So every transfer here is
non-blocking, and :func:`until` is the one place that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from workbench.config import Settings
from workbench.core.backend.base import Array, Backend, Reduction, Traffic
from workbench.transport.links import LinkCollectives, link_backend, pieces
from workbench.transport.mpi_waiting import take_back, until, wait

if TYPE_CHECKING:
    from workbench.transport.bootstrap.mpi import MpiBootstrap

DATA = 0  # the tag of all messages here; the bootstrap's have others
_SMALL_BYTES = 32 << 10  # below this the library's algorithm has the lower latency
# Not min and max: MPI's pass over a NaN, which must not be hidden.
_OPS = {"sum": MPI.SUM, "average": MPI.SUM, "product": MPI.PROD}


class MpiLink:
    """A Link over a communicator of our own.

    Args:
        comm: used by nobody else.
        timeout_s: deadline of one message.

    Attributes:
        tick: called amid a long wait; the engine puts its own here.
        piece_bytes: a longer message goes in pieces, for MPI before version 4 counts bytes in 31 bits; on all ranks.
    """

    name = "MPI"
    piece_bytes = 1 << 30

    def __init__(self, comm: MPI.Intracomm, timeout_s: float = 300.0) -> None:
        self.comm, self.timeout_s = comm, timeout_s
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.tick: Callable[[], None] = lambda: None
        self._begun: list[list[MPI.Request]] = []

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        self.start(send, dest, recv, source)()

    def start(self, send: Array | None, dest: int, recv: Array | None, source: int) -> Callable[[], None]:
        """Begin both, the receive first; the result waits for the end. If a wait fails, all that was begun is void."""
        requests: list[MPI.Request] = []
        self._begun.append(requests)
        for piece in pieces(recv, self.piece_bytes):
            requests.append(self.comm.Irecv([piece, MPI.BYTE], source, DATA))
        for piece in pieces(send, self.piece_bytes):
            requests.append(self.comm.Isend([piece, MPI.BYTE], dest, DATA))
        return lambda: self._finish(requests)

    def _finish(self, requests: list[MPI.Request]) -> None:
        try:
            until(lambda: bool(MPI.Request.Testall(requests)), self.tick, self.timeout_s)
            self._begun = [each for each in self._begun if each is not requests]
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """What was begun and not waited for is void: nothing is written to its memory any more."""
        begun, self._begun = self._begun, []
        if begun and not MPI.Is_finalized():
            take_back([request for each in begun for request in each if request != MPI.REQUEST_NULL])

    def close(self, clean: bool = True) -> None:
        """Free the communicator, which all ranks must do together; otherwise leave it to the end of the process."""
        self.take_back()
        if clean and not MPI.Is_finalized():
            self.comm.Free()


def mpi_backend(comm: MPI.Intracomm, timeout_s: float) -> Backend:
    """The backend over a communicator; see :class:`MpiLink`."""
    link = MpiLink(comm, timeout_s)
    return replace(link_backend(link), collectives=MpiCollectives(link))


def connect(bootstrap: MpiBootstrap, settings: Settings) -> Backend:
    """The backend over the communicator by which the ranks found each other."""
    return mpi_backend(bootstrap.comm, settings.data_timeout_s)


class MpiCollectives:
    """The Link's algorithms, and MPI's own allreduce for small arrays, whose latency grows with log n."""

    def __init__(self, link: MpiLink) -> None:
        self._link, self._ring = link, LinkCollectives(link)
        self.allgather, self.broadcast, self.alltoall = self._ring.allgather, self._ring.broadcast, self._ring.alltoall
        self.reducescatter = self._ring.reducescatter

    def allreduce(
        self, array: Array, reduction: Reduction, offsets: Sequence[int] = (), source: Array | None = None
    ) -> Traffic:
        """MPI's algorithm below 32 KiB, the ring above. MPI does not tell what it sent: then counts are 0."""
        if (
            reduction.op not in _OPS
            or array.nbytes > _SMALL_BYTES
            or array.dtype.kind not in "fiu"
            or reduction.dtype in ("float16", "bfloat16")
        ):
            return self._ring.allreduce(array, reduction, offsets, source)
        if source is not None:
            array[...] = source
        reduction.before(array)
        if self._link.size > 1:
            result = array.copy()  # a few KiB; what cannot be cancelled must not write to the caller's array
            request: Any = self._link.comm.Iallreduce(MPI.IN_PLACE, result, _OPS[reduction.op])
            wait([request], self._link.tick, self._link.timeout_s)
            array[...] = result
        reduction.after(array)
        return Traffic()
