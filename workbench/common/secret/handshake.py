"""The two ends of a TCP connection prove to each other that they know a job's secret, without sending it.

A connection without a proof may be a stranger's: only a few of these are open at once, each for a short time.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import threading
import time

from workbench.common.secret.seal import MAC, derived

HANDSHAKE_S = 10.0
"""Deadline of a whole handshake, however slowly its bytes come."""
MOST = 64
"""So many handshakes at once, besides one per rank."""
_PAUSE_S = 0.01
_NUMBER = 16  # bytes
_CLOSED = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Guests:
    """Connections amid their handshake. Of too many the oldest is cut off: a rank shows the secret at once.

    Args:
        most: so many.

    Example:
        >>> guests, (one, other), (two, another) = Guests(1), socket.socketpair(), socket.socketpair()
        >>> guests.admit(one); guests.admit(two)
        >>> other.recv(1), guests.count
        (b'', 1)
        >>> for each in (one, other, two, another):
        ...     each.close()
    """

    def __init__(self, most: int) -> None:
        self._most, self._open, self._lock = most, dict[socket.socket, None](), threading.Lock()

    @property
    def count(self) -> int:
        return len(self._open)

    def admit(self, guest: socket.socket) -> None:
        with self._lock:
            while len(self._open) >= self._most:
                self._cut_off_oldest()
            self._open[guest] = None

    def leave(self, guest: socket.socket) -> None:
        """It has shown the secret, or is closed."""
        with self._lock:
            self._open.pop(guest, None)

    def cut_off(self) -> None:
        with self._lock:
            while self._open:
                self._cut_off_oldest()

    def goes_on(self, error: OSError) -> bool:
        """After an error of ``accept``: is the listener open still? Where files have run out, the oldest gives way."""
        if error.errno in _OUT_OF_FILES:
            with self._lock:
                if self._open:
                    self._cut_off_oldest()
        time.sleep(_PAUSE_S)
        return error.errno not in _CLOSED  # others are one connection's, which was lost before it was accepted

    def _cut_off_oldest(self) -> None:
        oldest = next(iter(self._open))
        del self._open[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it


def greet(sock: socket.socket, key: bytes, guests: Guests) -> bytes:
    """The side that listens: does whoever has connected know the key? If so, it is shown that this side does, too.

    It is a guest until it has shown that it does, and no moment longer: from then on it must not be cut off for others.

    Args:
        sock: the connection.
        key: made from the job's secret for this purpose.
        guests: where it is counted meanwhile.

    Returns:
        A key of this connection alone; nothing if the other side does not know the key.

    Raises:
        OSError: it did not answer in time, or closed the connection.
    """
    guests.admit(sock)
    try:
        until = time.monotonic() + HANDSHAKE_S
        sock.settimeout(HANDSHAKE_S)
        number = secrets.token_bytes(_NUMBER)
        sock.sendall(number)
        theirs = exactly(sock, _NUMBER, until)
        known = secrets.compare_digest(exactly(sock, MAC, until), derived(key, "rank", number))
    finally:
        guests.leave(sock)
    if not known:
        return b""
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
        OSError: nobody answers in time, or somebody who does not know the key.
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
            raise OSError("who listens there does not believe this rank: is it another job's?") from None
        if not secrets.compare_digest(answer, derived(key, "rank 0", number)):
            raise OSError("who listens there does not know the job's secret")
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


__all__ = ["HANDSHAKE_S", "MOST", "Guests", "connect", "exactly", "greet"]
