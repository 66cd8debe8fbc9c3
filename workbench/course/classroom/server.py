"""The page of ``workbench class``: a server for one reader on this machine."""

from __future__ import annotations

import functools
import hmac
import http.server
import json
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.cli.local_server import LocalServer

_PAGE = Path(__file__).with_name("page.html")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class _Board(http.server.BaseHTTPRequestHandler):
    """Answers for the page and for its state; nothing else, and nothing without the token."""

    timeout = 20.0  # seconds that a connection may be silent: its thread ends then

    def __init__(self, token: str, state: Callable[[], dict[str, Any]], *arguments: Any) -> None:
        self._token, self._state = token, state
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """``/TOKEN/`` and ``/TOKEN/state.json``."""
        _, token, name = [*self.path.split("/", 2), "", ""][:3]
        here = self.headers.get("Host", "").rpartition(":")[0] in ("127.0.0.1", "localhost")
        if not here or not hmac.compare_digest(token.encode(), self._token.encode()):
            self.send_error(404)
        elif name == "":
            self._send("text/html; charset=utf-8", _PAGE.read_bytes())
        elif name == "state.json":
            self._send("application/json", json.dumps(self._state()).encode())
        else:
            self.send_error(404)

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *message: Any) -> None:
        """Nothing is written for each request."""


def server(state: Callable[[], dict[str, Any]], port: int = 0) -> tuple[LocalServer, str]:
    """A server on the loopback address, and the page's address.

    Args:
        state: what the page shows now; called by one thread at a time.
        port: 0: any that is free.

    Raises:
        LaunchError: the port cannot be used.
    """
    token, lock = secrets.token_urlsafe(16), threading.Lock()

    def one_at_a_time() -> dict[str, Any]:
        with lock:
            return state()

    found = LocalServer(port, functools.partial(_Board, token, one_at_a_time))
    return found, f"http://127.0.0.1:{found.server_port}/{token}/"
