"""The one place that waits for MPI. A blocking call can be neither interrupted nor ended, and it burns a core."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mpi4py import MPI

from workbench.errors import DeadlineError
from workbench.transport.polling import poll

if TYPE_CHECKING:
    pass

_SPINS = 200  # tests before the first sleep
_LAST_WORDS_S = 1.0
_KEPT: list[MPI.Request] = []  # of jobs that broke; mpi4py keeps a request's memory as long as the request


def wait(requests: list[MPI.Request], tick: Callable[[], None], timeout_s: float) -> None:
    """Wait for non-blocking MPI requests: test, then yield, then sleep ever longer (at most 1 ms).

    Args:
        requests: what to wait for.
        tick: called some twenty times a second; it may raise to end the wait.
        timeout_s: deadline.

    Raises:
        DeadlineError: the deadline has passed. The requests are taken back, see :func:`take_back`.
    """
    try:
        until(lambda: bool(MPI.Request.Testall(requests)), tick, timeout_s)
    except BaseException:
        take_back([request for request in requests if request != MPI.REQUEST_NULL])
        raise


def until(done: Callable[[], bool], tick: Callable[[], None], timeout_s: float) -> None:
    """Wait until it is true; see :func:`wait`."""

    def in_time(waited_s: float) -> None:
        tick()
        if waited_s > timeout_s:
            raise DeadlineError(f"MPI: no answer within {timeout_s:g} s (WORKBENCH_DATA_TIMEOUT_S).")

    poll(done, in_time, _SPINS)


def take_back(requests: list[MPI.Request]) -> None:
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
