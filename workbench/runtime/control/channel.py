"""The channel from a rank to rank 0: a connection, or on rank 0 itself a call."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from workbench.common.secret.seal import Seal
from workbench.core.messages import Announce, Decision, Event
from workbench.runtime.control.codec import decode_decision, encode_event
from workbench.runtime.control.connection import Connection
from workbench.runtime.control.liveness import Rank0Liveness
from workbench.runtime.control.server import LARGEST, ControlServer

_LARGEST_OF_RANK_0 = 1 << 30  # bytes of a message


class Rank0Channel(Protocol):
    """What a :class:`~workbench.runtime.control.client.ControlClient` needs of its channel. One thread uses it."""

    @property
    def spins(self) -> bool:
        """Is it worth asking again and again, without sleeping? Not where another thread of this process answers."""

    def open(self, poller: select.poll, wake: Callable[[], None]) -> None:
        """Begin: messages end a wait in ``poller``, or call ``wake``."""

    def send(self, event: Event) -> None:
        """Tell rank 0 something; never blocks."""

    def take(self, spinning: bool = False) -> list[Decision]:
        """What was decided since the last call; never blocks.

        Args:
            spinning: it is asked again at once: look only where an answer can be in a moment.
        """

    def wait(self, timeout_s: float) -> Sequence[tuple[int, int]]:
        """Sleep until something comes, at most so long; what ``poller`` says."""

    def look(self, now: float, slept_s: float) -> None:
        """Find out whether rank 0 is still there; this process has not run for ``slept_s`` before."""

    def lost(self) -> str:
        """Why rank 0 counts as lost; empty if it does not."""

    def sockets(self) -> list[socket.socket]:
        """What it is made of; on rank 0 the connections of all others."""

    def close(self) -> None:
        """Give everything back; what was said still arrives."""


class SocketChannel:
    """The :class:`Rank0Channel` of every rank but rank 0: a connection.

    Args:
        rank: this rank.
        sock: connected.
        secret: the job's.
        peer_timeout_s: see :class:`workbench.config.Settings`.
    """

    spins = True

    def __init__(self, rank: int, sock: socket.socket, secret: bytes, peer_timeout_s: float = 30.0) -> None:
        self._rank, self._poller = rank, select.poll()
        self._up, self._down = Seal(secret, b"up"), Seal(secret, b"down")
        self._number = self._newest = 0
        self._watch = Rank0Liveness(sock, peer_timeout_s)
        self._connection = Connection(sock, _LARGEST_OF_RANK_0)

    def open(self, poller: select.poll, wake: Callable[[], None]) -> None:
        self._poller = poller
        poller.register(self._connection, select.POLLIN)

    def send(self, event: Event) -> None:
        """Send an event, in as many messages as rank 0's limit on their size asks for."""
        body = encode_event(event)
        if len(body) > LARGEST // 2 and isinstance(event, Announce) and len(event.items) > 1:
            half = len(event.items) // 2  # without values, so the data plane moves all of these
            self.send(Announce(event.rank, event.items[:half], event.seen))
            self.send(Announce(event.rank, event.items[half:], event.seen))
            return
        self._number += 1
        greeted = self._connection.private and self._number > 1
        self._connection.send(body if greeted else self._up.close(self._rank, self._number, body))
        if self._connection.backlog and not self._connection.closed:
            self._poller.modify(self._connection, select.POLLIN | select.POLLOUT)

    def take(self, spinning: bool = False) -> list[Decision]:
        got: list[Decision] = []
        connection = self._connection
        if connection.closed:
            return []
        if connection.backlog:
            connection.flush()
            if not connection.backlog:
                self._poller.modify(connection, select.POLLIN)
        before = connection.received
        for data in connection.receive():
            body = data if connection.private else self._down.body(data)
            if body:  # else it is a sign of life only, or not rank 0's
                decision = decode_decision(body)
                if decision.number > self._newest:
                    self._newest = decision.number
                    got.append(decision)
        if connection.received > before:
            self._watch.sign_of_life(time.monotonic())
        if connection.closed:
            self._poller.unregister(connection)
        return got

    def wait(self, timeout_s: float) -> Sequence[tuple[int, int]]:
        return self._poller.poll(timeout_s * 1000)

    def look(self, now: float, slept_s: float) -> None:
        self._watch.look(now, slept_s)

    def lost(self) -> str:
        return "its connection ended without a word" if self._connection.closed else self._watch.why

    def sockets(self) -> list[socket.socket]:
        return [self._connection.socket]

    def close(self) -> None:
        self._connection.close()


class LocalChannel:
    """The :class:`Rank0Channel` of rank 0 itself: it calls the server, and the server calls back.

    Args:
        server: started, or about to be.
    """

    spins = False

    def __init__(self, server: ControlServer) -> None:
        self._server, self._got, self._poller = server, deque[Decision](), select.poll()
        self._inside = False  # this rank calls the server, and looks for an answer afterwards

    def open(self, poller: select.poll, wake: Callable[[], None]) -> None:
        def put(decision: Decision) -> None:
            self._got.append(decision)
            if not self._inside:
                wake()

        self._server.own, self._poller = put, poller

    def send(self, event: Event) -> None:
        self._inside = True
        try:
            self._server.receive(event)
        finally:
            self._inside = False

    def take(self, spinning: bool = False) -> list[Decision]:
        return [self._got.popleft() for _ in range(len(self._got))]

    def wait(self, timeout_s: float) -> Sequence[tuple[int, int]]:
        return self._poller.poll(timeout_s * 1000)

    def look(self, now: float, slept_s: float) -> None:
        """See :class:`Rank0Channel`."""

    def lost(self) -> str:
        return "" if self._got or self._server.is_alive() else "its coordinator has ended"

    def sockets(self) -> list[socket.socket]:
        return self._server.sockets()

    def close(self) -> None:
        """See :class:`Rank0Channel`."""
