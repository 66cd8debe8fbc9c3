"""End connections that a library has opened and offers no way to end."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator


def hang_up(notes: Iterable[bytes]) -> None:
    """Shut down each TCP connection of this process whose own or other end is named in one of ``notes``.

    Whoever waits for such a connection is told at once that it has ended.

    Args:
        notes: bytes in which addresses stand as C's ``struct sockaddr_in`` or ``sockaddr_in6``: what the processes told
            each other before they connected.

    Example:
        >>> listener = socket.create_server(("127.0.0.1", 0))
        >>> there = socket.create_connection(listener.getsockname())
        >>> here = listener.accept()[0]
        >>> hang_up([b"its address: " + sockaddr(socket.AF_INET, listener.getsockname())])
        >>> there.recv(1)  # it has ended
        b''
        >>> here.close(), there.close(), listener.close()
        (None, None, None)
    """
    notes = list(notes)
    for connection in _connections():
        with connection, contextlib.suppress(OSError):  # not connected, or no more
            ends = connection.getsockname(), connection.getpeername()
            if any(sockaddr(connection.family, end) in note for end in ends for note in notes):
                connection.shutdown(socket.SHUT_RDWR)


def sockaddr(family: int, address: tuple[str, int]) -> bytes:
    """The address as C holds it, up to its last byte that tells anything.

    Args:
        family: ``socket.AF_INET`` or ``socket.AF_INET6``.
        address: as ``getsockname()`` gives it.
    """
    flow = bytes(4) if family == socket.AF_INET6 else b""
    number = socket.inet_pton(family, address[0])
    return struct.pack("=H", family) + struct.pack("!H", address[1]) + flow + number


def _connections() -> Iterator[socket.socket]:
    """A second handle of every TCP socket of this process."""
    for name in os.listdir("/dev/fd"):
        try:
            handle = os.dup(int(name))
        except OSError:  # closed by now
            continue
        if not stat.S_ISSOCK(os.fstat(handle).st_mode):
            os.close(handle)
            continue
        found = socket.socket(fileno=handle)
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            yield found
        else:
            found.close()
