"""Can one host connect to another? Each opens a :class:`Port`, and connects to those of all others (:func:`reach`).

A guest is told a word, and then bytes that fill packets of every usual size. Where the word comes and these do not, the
network loses large packets: an MTU on the way is smaller than the hosts believe, and nobody tells them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from workbench.common.ports import family_of, listen

_LOOK_S = 0.05
_GUESTS = 256  # that are told the word in one go
SMALL_ONLY = "small packets arrive, and large ones do not"
_FILLING = b"." * (16 << 10)  # more than a jumbo frame, and less than a socket takes without a reader


class PortAddress(NamedTuple):
    """Where to connect to, and the word that is said there."""

    address: str
    port: int
    word: str


class Port:
    """A port that is open at one address.

    Whoever connects is told a word that is drawn anew, and then bytes that mean nothing.

    Args:
        address: of this host.
        low, high: the first free port from one to the other is taken; any free one if both are 0.

    Raises:
        OSError: none is free.
    """

    def __init__(self, address: str, low: int = 0, high: int = 0) -> None:
        self._socket, self.word = listen(address, (low, high)), secrets.token_hex(8)
        self._socket.setblocking(False)
        self.number: int = self._socket.getsockname()[1]

    def fileno(self) -> int:
        return self._socket.fileno()

    def greet(self) -> None:
        with contextlib.suppress(OSError):
            for _ in range(_GUESTS):
                guest, _ = self._socket.accept()
                with guest:
                    guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the word in a packet of its own
                    guest.sendall(self.word.encode())
                    guest.sendall(_FILLING)

    @contextlib.contextmanager
    def greeting(self) -> Iterator[None]:
        """Within the block a thread tells all who come; then the port is closed."""
        over = threading.Event()

        def serve() -> None:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self._socket, selectors.EVENT_READ)
                while not over.is_set():
                    if waiting.select(_LOOK_S):
                        self.greet()

        thread = threading.Thread(target=serve, name="workbench-port", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.close()

    def close(self) -> None:
        self._socket.close()


def reach(addresses: Mapping[str, PortAddress], limit_s: float, own: Port | None = None) -> dict[str, str]:
    """Connect to all places at once.

    Args:
        places: by host.
        limit_s: deadline.
        own: a port of this host, whose guests are not kept waiting meanwhile.

    Returns:
        By host what went wrong; "" where nothing did.
    """
    found: dict[str, str] = {}
    received = dict.fromkeys(addresses, b"")
    until = time.monotonic() + limit_s
    with selectors.DefaultSelector() as waiting, contextlib.ExitStack() as stack:
        if own:
            waiting.register(own, selectors.EVENT_READ)
        for host, to in addresses.items():
            sock = stack.enter_context(socket.socket(family_of(to.address)))
            sock.setblocking(False)
            error = sock.connect_ex((to.address, to.port))
            if error not in (0, errno.EINPROGRESS):
                found[host] = os.strerror(error).lower()
                continue
            waiting.register(sock, selectors.EVENT_READ, host)
        while len(found) < len(addresses) and (left_s := until - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                host = key.data
                if own and host is None:
                    own.greet()
                    continue
                why = _read_on(key.fileobj, received, host, addresses[host].word.encode() + _FILLING)
                if why is not None:
                    found[host] = why
                    waiting.unregister(key.fileobj)
    for host in addresses.keys() - found.keys():
        found[host] = f"{SMALL_ONLY} within {limit_s:g} s" if received[host] else f"no answer within {limit_s:g} s"
    return {host: found[host] for host in addresses}


def _read_on(sock: Any, received: dict[str, bytes], host: str, right: bytes) -> str | None:
    """Read on; what is wrong, "" when all has come, None while there is more to come."""
    try:
        # Why a connection failed the socket says once, and to read from it may then say something else.
        if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return os.strerror(error).lower()
        data = sock.recv(1 << 16)
    except BlockingIOError:
        return None
    except OSError as error:
        return (error.strerror or str(error)).lower()
    received[host] += data
    if data and right.startswith(received[host]):
        return "" if received[host] == right else None
    return f"another program answers there ({received[host][:64].decode(errors='replace')!r})"
