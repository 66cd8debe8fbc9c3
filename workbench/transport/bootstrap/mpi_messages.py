"""Exchanges of a bootstrap over MPI: point to point, so that nothing is out of step if one rank breaks off.

A collective that one rank has begun and left would take part in whatever the others begin next. A message has a number,
and one that nobody takes harms nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from workbench.errors import DeadlineError, LaunchError, PeerLostError
from workbench.transport.bootstrap.base import given_up
from workbench.transport.bootstrap.values import decode, encode
from workbench.transport.mpi_waiting import keep, until, wait

_LAST_WORDS_S = 5.0
_LISTEN_S = 0.5  # to somebody who has gone
_PROBLEM, _VALUE = 1, 2  # tags; 0 is the data plane's, and the numbers from 2 on are those of the exchanges


class Messages:
    """Between the ranks of a communicator.

    Args:
        comm: where nobody else uses these tags.
        peers: called amid waits; it may raise to end them.
    """

    def __init__(self, comm: MPI.Intracomm, peers: Callable[[], None]) -> None:
        self._comm, self._peers = comm, peers
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._others = [rank for rank in range(self.size) if rank != self.rank]
        self._tag, self._gave_up = _VALUE, set[int]()

    def exchange(self, value: Any, timeout_s: float) -> list[Any]:
        """Every rank's value, by rank: rank 0 takes them together.

        Raises:
            DeadlineError: not all came.
            LaunchError: a rank has given up.
        """
        tag, self._tag = self._tag, self._tag + 1
        try:
            if self.rank:
                self._send([0], tag, encode(value), timeout_s)
                (everything,) = self._receive([0], tag, timeout_s)
            else:
                values = [encode(value), *self._receive(self._others, tag, timeout_s)]
                everything = encode([decode(each) for each in values])
                self._send(self._others, tag, everything, timeout_s)
        except DeadlineError:
            raise DeadlineError(
                f"init(): not all {self.size} ranks came within {timeout_s:g} s (WORKBENCH_INIT_TIMEOUT_S). "
                "Call init() on every rank."
            ) from None
        return list(decode(everything))

    def look(self) -> None:
        """Has a rank ended, or given up?

        Raises:
            LaunchError, PeerLostError: it has.
        """
        try:
            self._peers()
        except PeerLostError:
            with suppress(DeadlineError):  # it may have said why, in a message that is not here yet
                until(self._no_message, lambda: None, _LISTEN_S)
            raise
        self._listen()

    def _no_message(self) -> bool:
        self._listen()
        return False

    def give_up(self, problem: str) -> None:
        """Tell the others, and wait a few seconds until each has heard it or has given up as well."""
        text, rest = encode(problem), [rank for rank in self._others if rank not in self._gave_up]
        requests = {rank: self._comm.Issend([text, MPI.BYTE], rank, _PROBLEM) for rank in rest}

        def delivered() -> bool:
            with suppress(LaunchError):
                self._listen()
            return all(request.Test() or rank in self._gave_up for rank, request in requests.items())

        try:
            until(delivered, self._peers, _LAST_WORDS_S)
        finally:
            keep(requests.values())

    def _listen(self) -> None:
        status = MPI.Status()
        message = self._comm.Improbe(MPI.ANY_SOURCE, _PROBLEM, status)
        if message is not None:
            self._gave_up.add(status.Get_source())
            raise given_up(status.Get_source(), decode(self._take(message, status, _LAST_WORDS_S))) from None

    def _send(self, to: Sequence[int], tag: int, data: bytes, timeout_s: float) -> None:
        wait([self._comm.Isend([data, MPI.BYTE], rank, tag) for rank in to], self.look, timeout_s)

    def _receive(self, sources: Sequence[int], tag: int, timeout_s: float) -> list[bytes]:
        found: dict[int, bytes] = {}

        def come() -> bool:
            status = MPI.Status()
            while len(found) < len(sources):
                message = self._comm.Improbe(MPI.ANY_SOURCE, tag, status)
                if message is None:
                    return False
                found[status.Get_source()] = self._take(message, status, timeout_s)
            return True

        until(come, self.look, timeout_s)
        return [found[rank] for rank in sources]

    def _take(self, message: MPI.Message, status: MPI.Status, timeout_s: float) -> bytes:
        data = bytearray(status.Get_count(MPI.BYTE))
        wait([message.Irecv([data, MPI.BYTE])], self._peers, timeout_s)
        return bytes(data)
