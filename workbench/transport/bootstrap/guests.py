"""Who has connected and not shown the job's secret yet: a stranger, perhaps. Silent ones keep no rank away for long."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time

HANDSHAKE_S = 10.0
"""Deadline of a whole handshake, however slowly its bytes come."""
MOST = 64
"""So many handshakes at once, besides one per rank."""
_PAUSE_S = 0.01
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
        """How many there are."""
        return len(self._open)

    def admit(self, guest: socket.socket) -> None:
        """One more."""
        with self._lock:
            while len(self._open) >= self._most:
                self._cut_off_oldest()
            self._open[guest] = None

    def leave(self, guest: socket.socket) -> None:
        """It has shown the secret, or is closed."""
        with self._lock:
            self._open.pop(guest, None)

    def cut_off(self) -> None:
        """All of them."""
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


__all__ = ["HANDSHAKE_S", "MOST", "Guests", "exactly"]
