"""MPI: the data plane where mpiexec or srun started the ranks.

A blocking MPI call can be neither interrupted nor ended, and it burns a core. So every transfer here is
non-blocking, and :func:`wait` is the one place that waits.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from workbench.backends.base import Array, Reduction, Traffic
from workbench.backends.links import LinkBackend
from workbench.errors import DeadlineError

# Tests before the first sleep. Between them the core is offered to whoever wants it: without that, on a busy
# machine, the spinning rank keeps the other one from sending what it waits for (1.1 ms instead of 0.35 for 4 KiB).
_SPINS = 200
_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
_SHORTEST_S, _LONGEST_S = 20e-6, 1e-3
_TICK_S = 0.05
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
        DeadlineError: the deadline has passed. The requests are cancelled where MPI allows it.
    """
    for _ in range(_SPINS):
        if MPI.Request.Testall(requests):
            return
        _yield()
    pause, started = _SHORTEST_S, time.monotonic()
    tick_at = started + _TICK_S
    try:
        while not MPI.Request.Testall(requests):
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
            now = time.monotonic()
            if now >= tick_at:
                tick_at = now + _TICK_S
                tick()
            if now - started > timeout_s:
                raise DeadlineError(f"MPI: no answer within {timeout_s:g} s (WORKBENCH_DATA_TIMEOUT_S).")
    except BaseException:
        for request in requests:
            if request != MPI.REQUEST_NULL:
                with contextlib.suppress(MPI.Exception):  # a collective's cannot be cancelled
                    request.Cancel()
                    request.Free()
        raise


class MpiLink:
    """A Link over a communicator of our own.

    Args:
        comm: used by nobody else.
        timeout_s: deadline of one message.

    Attributes:
        tick: called amid a long wait; the engine puts its own here.
    """

    def __init__(self, comm: MPI.Intracomm, timeout_s: float = 300.0) -> None:
        self.comm, self.timeout_s = comm, timeout_s
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.tick: Callable[[], None] = lambda: None

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """Send and receive at the same time; the receive is posted first."""
        requests = []
        if recv is not None:
            requests.append(self.comm.Irecv([recv, MPI.BYTE], source))
        if send is not None:
            requests.append(self.comm.Isend([send, MPI.BYTE], dest))
        wait(requests, self.tick, self.timeout_s)

    def close(self, clean: bool = True) -> None:
        """Free the communicator, which all ranks must do together; otherwise leave it to the end of the process."""
        if clean and not MPI.Is_finalized():
            self.comm.Free()


class MpiBackend(LinkBackend):
    """The Link's algorithms, and MPI's own allreduce for small arrays, whose latency grows with log n."""

    link: MpiLink

    def __init__(self, link: MpiLink) -> None:
        super().__init__(link, "MPI")

    def _sum(self, array: Array, reduction: Reduction) -> Traffic:
        """MPI's algorithm below 32 KiB, the ring above. MPI does not tell what it sent: then counts are 0."""
        if (
            reduction.op not in _OPS
            or array.nbytes > _SMALL_BYTES
            or array.dtype.kind not in "fiu"
            or reduction.dtype in ("float16", "bfloat16")
        ):
            return super()._sum(array, reduction)
        if self.size > 1:
            request: Any = self.link.comm.Iallreduce(MPI.IN_PLACE, array, _OPS[reduction.op])
            wait([request], self.link.tick, self.link.timeout_s)
        return Traffic()
