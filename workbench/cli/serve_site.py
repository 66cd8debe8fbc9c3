"""A server of static pages for one reader on this machine; see ``workbench site``."""

from __future__ import annotations

import functools
import http.server
from pathlib import Path
from typing import Any

from workbench.cli.local_server import LocalServer
from workbench.errors import LaunchError

_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm"}


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
    """A server of the pages in a folder, on the loopback address.

    Args:
        folder: with ``index.html``.
        port: 0: any that is free.

    Raises:
        LaunchError: there are no pages, or the port cannot be used.
    """
    if not (folder / "index.html").is_file():
        raise LaunchError(f"{folder} has no index.html. `make site` in a clone builds the pages, into build/site.")
    return LocalServer(port, functools.partial(_Pages, directory=str(folder)))
