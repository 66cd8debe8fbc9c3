"""Ports of this host, and who is at the other end of a socket."""

from __future__ import annotations

import socket
import struct


def family_of(address: str) -> socket.AddressFamily:
    """IPv6 or IPv4.

    Example:
        >>> family_of("fd00::1").name, family_of("10.0.0.1").name
        ('AF_INET6', 'AF_INET')
    """
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listen(address: str, ports: tuple[int, int] = (0, 0), backlog: int = 1024) -> socket.socket:
    """A socket that listens at one address of this host.

    Args:
        address: IPv4 or IPv6.
        ports: the first free one from one to the other is taken; any free one if both are 0.
        backlog: so many connections may wait.

    Raises:
        OSError: none is free, and why.

    Example:
        >>> with listen("127.0.0.1") as listener:
        ...     listener.getsockname()[0]
        '127.0.0.1'
    """
    low, high = ports
    why = ""
    for port in range(low, high + 1):
        try:
            return socket.create_server((address, port), family=family_of(address), backlog=backlog)
        except OSError as error:
            why = error.strerror or str(error)
    which = f"port from {low} to {high} (WORKBENCH_PORTS)" if high else "port"
    raise OSError(f"no {which} is free at {address}: {why}")


def peer(sock: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end of a socket of this machine; 0 and -1 if they cannot be told."""
    if sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return 0, -1
    pid, user, _ = struct.unpack("iii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user
