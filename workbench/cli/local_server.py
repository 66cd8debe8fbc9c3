"""A server of pages for one reader on this machine, whom other users of it cannot keep from them."""

from __future__ import annotations

import contextlib
import functools
import http.server
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.errors import LaunchError

MOST = 64
"""Connections at a time."""
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm"}


class LocalServer(http.server.ThreadingHTTPServer):
    """Listens on loopback, where every user of the machine may connect.

    The oldest connection makes room for the newest: else those that say nothing, or a byte now and then, would take all
    threads and open files. Who leaves amid an answer is not worth a word on the reader's terminal.

    Args:
        port: 0: any that is free.
        handler: makes the handler of a connection.

    Raises:
        LaunchError: the port cannot be used.
    """

    request_queue_size = MOST

    def __init__(self, port: int, handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> None:
        self._lock, self._connections = threading.Lock(), dict[socket.socket, None]()
        try:
            super().__init__(("127.0.0.1", port), handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "ports are 0 to 65535"
            raise LaunchError(f"Port {port} cannot be used: {why}. Choose another --port.") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections[request] = None
            if len(self._connections) > MOST:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Said, unless it is the other end that has gone."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Pages(http.server.SimpleHTTPRequestHandler):
    """Pages that share nothing with others, so that the Stop button interrupts Python without ending it."""

    def guess_type(self, path: Any) -> str:
        """By the name alone, whatever this system has in a list of its own."""
        return _TYPES.get(Path(path).suffix) or super().guess_type(path)

    def end_headers(self) -> None:
        """Add what isolates a page."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, *message: Any) -> None:
        """Nothing is written for each request."""


def server(folder: Path, port: int = 0) -> LocalServer:
    """A server of the pages in a folder, on the loopback address; see ``workbench site``.

    Args:
        folder: with ``index.html``.
        port: 0: any that is free.

    Raises:
        LaunchError: there are no pages, or the port cannot be used.
    """
    if not (folder / "index.html").is_file():
        raise LaunchError(f"{folder} has no index.html. `make site` in a clone builds the pages, into build/site.")
    return LocalServer(port, functools.partial(_Pages, directory=str(folder)))
