"""The two ends of a TCP connection prove to each other that they know a job's secret, without sending it."""

from __future__ import annotations

import errno
import secrets
import socket
import time
from collections.abc import Callable

from workbench.common.secret.seal import MAC, derived

HANDSHAKE_S = 10.0
"""Deadline of a whole handshake, however slowly its bytes come."""
_NUMBER = 16  # bytes


class StrangerError(ConnectionError):
    """Who listens there does not know the secret, or does not believe that this side does."""


def greet(sock: socket.socket, key: bytes, known: Callable[[], None]) -> bytes:
    """The side that listens: does whoever has connected know the key? If so, it is shown that this side does, too.

    Args:
        sock: the connection.
        key: made from the job's secret for this purpose.
        known: see :class:`workbench.common.secret.listener.Listener`.

    Returns:
        A key of this connection alone; nothing if the other side does not know the key.

    Raises:
        OSError: it did not answer in time, or closed the connection.
    """
    until = time.monotonic() + HANDSHAKE_S
    sock.settimeout(HANDSHAKE_S)
    number = secrets.token_bytes(_NUMBER)
    sock.sendall(number)
    theirs = exactly(sock, _NUMBER, until)
    if not secrets.compare_digest(exactly(sock, MAC, until), derived(key, "rank", number)):
        return b""
    known()
    sock.settimeout(HANDSHAKE_S)
    sock.sendall(derived(key, "rank 0", theirs))
    return derived(key, "connection", number, theirs)


def connect(address: str, port: int, key: bytes, until: float) -> tuple[socket.socket, bytes]:
    """The side that connects, likewise.

    Args:
        address, port: where the other side listens.
        key: made from the job's secret for this purpose.
        until: deadline, by ``time.monotonic()``.

    Returns:
        The socket, and a key of this connection alone.

    Raises:
        StrangerError: who listens there does not know the key.
        OSError: nobody answers in time.
    """
    sock = socket.create_connection((address, port), max(0.001, until - time.monotonic()))
    try:
        number = secrets.token_bytes(_NUMBER)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs = exactly(sock, _NUMBER, until)
        sock.sendall(number + derived(key, "rank", theirs))
        try:
            answer = exactly(sock, MAC, until)
        except ConnectionError:
            raise StrangerError("who listens there does not believe this rank: is it another job's?") from None
        if not secrets.compare_digest(answer, derived(key, "rank 0", number)):
            raise StrangerError("who listens there does not know the job's secret")
    except BaseException:
        sock.close()
        raise
    return sock, derived(key, "connection", theirs, number)


def exactly(sock: socket.socket, count: int, until: float) -> bytes:
    """Read so many bytes.

    Args:
        sock: it blocks; its timeout is changed.
        count: how many.
        until: deadline for all of them, by ``time.monotonic()``.

    Raises:
        OSError: they did not come.
    """
    found = bytearray()
    while len(found) < count:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "it does not say what a rank says")
        sock.settimeout(None if left_s == float("inf") else left_s)
        more = sock.recv(min(1 << 20, count - len(found)))
        if not more:
            raise ConnectionError(errno.ECONNRESET, "it has closed the connection")
        found += more
    return bytes(found)
