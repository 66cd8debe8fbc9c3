"""End connections, and close listeners, that a library has opened and offers no way to end."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path


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
    for _, connection in _sockets():
        with connection, contextlib.suppress(OSError):  # not connected, or no more
            ends = connection.getsockname(), connection.getpeername()
            if any(sockaddr(connection.family, end) in note for end in ends for note in notes):
                connection.shutdown(socket.SHUT_RDWR)


def stop_listening(notes: Iterable[bytes]) -> None:
    """Close each TCP socket of this process that listens at an address in ``notes``: who connects there is refused.

    The library that has opened it waits for it in an epoll, and will take it out of there and close it some day. So the
    number stays in use, in the same epoll, by an event that never comes. Nothing is done on systems other than Linux.

    Args:
        notes: as for :func:`hang_up`.

    Example:
        >>> import errno
        >>> listener = socket.create_server(("127.0.0.1", 0))
        >>> place, waiting = listener.getsockname(), select.epoll()
        >>> waiting.register(listener, select.EPOLLIN)
        >>> stop_listening([sockaddr(socket.AF_INET, place)])
        >>> with socket.socket() as stranger:
        ...     errno.errorcode[stranger.connect_ex(place)]
        'ECONNREFUSED'
        >>> waiting.poll(0), waiting.unregister(listener), listener.close(), waiting.close()
        ([], None, None, None)
    """
    notes = list(notes)
    for number, found in _sockets():
        with found:
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            meant = listens and any(sockaddr(found.family, found.getsockname()) in note for note in notes)
        if meant and hasattr(os, "eventfd"):
            _replace(number, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))


def _replace(number: int, silent: int) -> None:
    """Give the number to another file, where it is waited for, too."""
    epolls = [each for each in _epolls() if _waits_for(each, number)]
    os.dup2(silent, number, inheritable=False)
    os.close(silent)
    for each in epolls:
        with select.epoll.fromfd(os.dup(each)) as waiting:
            waiting.register(number, select.EPOLLIN)


def _epolls() -> Iterator[int]:
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(path) == "anon_inode:[eventpoll]":
                yield int(path.name)


def _waits_for(epoll: int, number: int) -> bool:
    try:
        lines = Path(f"/proc/self/fdinfo/{epoll}").read_text().splitlines()
    except OSError:  # another thread has closed it meanwhile
        return False
    return any(line.split()[:2] == ["tfd:", str(number)] for line in lines)


def sockaddr(family: int, address: tuple[str, int]) -> bytes:
    """The address as C holds it, up to its last byte that tells anything.

    Args:
        family: ``socket.AF_INET`` or ``socket.AF_INET6``.
        address: as ``getsockname()`` gives it.
    """
    flow = bytes(4) if family == socket.AF_INET6 else b""
    number = socket.inet_pton(family, address[0])
    return struct.pack("=H", family) + struct.pack("!H", address[1]) + flow + number


def _sockets() -> Iterator[tuple[int, socket.socket]]:
    """The number of every TCP socket of this process, and a second handle of it."""
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
            yield int(name), found
        else:
            found.close()
