"""Where rank 0 listens for ranks that know its host by a name alone."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any


def listen(host: str, port: int, local: bool) -> socket.socket:
    """A socket that listens at the address where the others look, and nowhere else.

    Where that is none of this machine's own (a router's, a service's), or the loopback interface though there are other
    machines (a host's own name often means 127.0.1.1 there), it listens everywhere.

    Raises:
        OSError: the port is taken.
    """
    found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), key=lambda each: each[0])
    literal = host == found[0][4][0]
    for family, *_, address in found:
        if ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback and not (local or literal):
            continue
        try:
            return _listening(family, address)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    return _listening(found[0][0], ("", port))


def _listening(family: int, address: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a job before has just ended
        made.bind(address)
        made.listen(4096)
    except OSError:
        made.close()
        raise
    return made
