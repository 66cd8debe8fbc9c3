"""MPI: the data plane where mpiexec or srun started the ranks.

A blocking MPI call can be neither interrupted nor ended, and it burns a core. So every transfer here is
non-blocking, and :func:`until` is the one place that waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from workbench.config import Settings
from workbench.core.backend.base import Array, Backend, Reduction, Traffic
from workbench.errors import DeadlineError
from workbench.transport.host.links import LinkCollectives, link_backend, pieces
from workbench.transport.polling import poll

if TYPE_CHECKING:
    from workbench.transport.bootstrap.mpi import MpiBootstrap

_SPINS = 200  # tests before the first sleep
_LAST_WORDS_S = 1.0
_KEPT: list[MPI.Request] = []  # of jobs that broke; mpi4py keeps a request's memory as long as the request
DATA = 0  # the tag of all messages here; the bootstrap's have others
_SMALL_BYTES = 32 << 10  # below this the library's algorithm has the lower latency
# Not min and max: MPI's pass over a NaN, which must not be hidden.
_OPS = {"sum": MPI.SUM, "average": MPI.SUM, "product": MPI.PROD}


def wait(requests: list[MPI.Request], tick: Callable[[], None], timeout_s: float) -> None:
    """Wait for non-blocking MPI requests: test, then yield, then sleep ever longer (at most 1 ms).

    Args:
        requests: what to wait for.
        tick: called some twenty times a second; it may raise to end the wait.
        timeout_s: deadline.

    Raises:
        DeadlineError: the deadline has passed. The requests are taken back, see :func:`_take_back`.
    """
    try:
        until(lambda: bool(MPI.Request.Testall(requests)), tick, timeout_s)
    except BaseException:
        _take_back([request for request in requests if request != MPI.REQUEST_NULL])
        raise


def until(done: Callable[[], bool], tick: Callable[[], None], timeout_s: float) -> None:
    """Wait until it is true; see :func:`wait`."""

    def in_time(waited_s: float) -> None:
        tick()
        if waited_s > timeout_s:
            raise DeadlineError(f"MPI: no answer within {timeout_s:g} s (WORKBENCH_DATA_TIMEOUT_S).")

    poll(done, in_time, _SPINS)


def _take_back(requests: list[MPI.Request]) -> None:
    """Cancel what nobody waits for any more, so that a late message is not written where the caller keeps other things.

    A message that has begun to arrive cannot be cancelled: it gets a second to end. What is left then (its sender is
    stopped; or it is a collective's) is kept, with its memory, for MPI may write there in any later call.
    """
    for request in requests:
        with contextlib.suppress(MPI.Exception):  # a collective's cannot be cancelled
            request.Cancel()
    until = time.monotonic() + _LAST_WORDS_S
    with contextlib.suppress(MPI.Exception):  # the caller has an error of its own to raise
        while not MPI.Request.Testall(requests) and time.monotonic() < until:
            time.sleep(1e-3)
    keep(requests)


def keep(requests: Iterable[MPI.Request]) -> None:
    """Those that are not done stay, with their memory, as long as the process."""
    _KEPT.extend(request for request in requests if request != MPI.REQUEST_NULL)


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
        """Send and receive at the same time."""
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
            _take_back([request for each in begun for request in each if request != MPI.REQUEST_NULL])

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

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """MPI's algorithm below 32 KiB, the ring above. MPI does not tell what it sent: then counts are 0."""
        if (
            reduction.op not in _OPS
            or array.nbytes > _SMALL_BYTES
            or array.dtype.kind not in "fiu"
            or reduction.dtype in ("float16", "bfloat16")
        ):
            return self._ring.allreduce(array, reduction)
        reduction.before(array)
        if self._link.size > 1:
            result = array.copy()  # a few KiB; what cannot be cancelled must not write to the caller's array
            request: Any = self._link.comm.Iallreduce(MPI.IN_PLACE, result, _OPS[reduction.op])
            wait([request], self._link.tick, self._link.timeout_s)
            array[...] = result
        reduction.after(array)
        return Traffic()
