"""Can one host connect to another? Each opens a :class:`Port`, and connects to those of all others (:func:`reach`)."""

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


class Place(NamedTuple):
    """Where to connect to, and the word that is said there."""

    address: str
    port: int
    word: str


class Port:
    """A port that is open at one address. Whoever connects is told a word that is drawn anew, and nothing else.

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
        """Readable when somebody has come."""
        return self._socket.fileno()

    def greet(self) -> None:
        """Tell all who have come."""
        with contextlib.suppress(OSError):
            for _ in range(_GUESTS):
                guest, _ = self._socket.accept()
                with guest:
                    guest.sendall(self.word.encode())

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
        """Open no more."""
        self._socket.close()


def reach(places: Mapping[str, Place], limit_s: float, own: Port | None = None) -> dict[str, str]:
    """Connect to all places at once.

    Args:
        places: by host.
        limit_s: deadline.
        own: a port of this host, whose guests are not kept waiting meanwhile.

    Returns:
        By host what went wrong; "" where nothing did.
    """
    found: dict[str, str] = {}
    until = time.monotonic() + limit_s
    with selectors.DefaultSelector() as waiting, contextlib.ExitStack() as stack:
        if own:
            waiting.register(own, selectors.EVENT_READ)
        for host, place in places.items():
            sock = stack.enter_context(socket.socket(family_of(place.address)))
            sock.setblocking(False)
            error = sock.connect_ex((place.address, place.port))
            if error not in (0, errno.EINPROGRESS):
                found[host] = os.strerror(error).lower()
                continue
            waiting.register(sock, selectors.EVENT_READ, host)
        while len(found) < len(places) and (left_s := until - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                if own and key.data is None:
                    own.greet()
                else:
                    found[key.data] = _heard(key.fileobj, places[key.data].word)
                    waiting.unregister(key.fileobj)
    return dict.fromkeys(places, f"no answer within {limit_s:g} s") | found


def _heard(sock: Any, word: str) -> str:
    try:
        said = sock.recv(64).decode(errors="replace")
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "" if said == word else f"another program answers there ({said!r})"


__all__ = ["Place", "Port", "reach"]
