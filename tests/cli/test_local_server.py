"""Servers for one reader on this machine, to which every user of it may connect: ``workbench class`` and ``site``."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.cli.local_server import MOST, server
from workbench.course.classroom import server as board_server


@pytest.fixture(params=["class", "site"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of the page, which is served."""
    (tmp_path / "index.html").write_text("the page")
    made, address = (
        board_server.server(dict)
        if request.param == "class"
        else ((pages := server(tmp_path)), f"http://127.0.0.1:{pages.server_port}/index.html")
    )
    with made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield address
        made.shutdown()
        thread.join()


def stranger(address: str, words: bytes) -> socket.socket:
    """A connection that says this, and no more."""
    found = socket.create_connection(("127.0.0.1", int(address.split(":")[2].split("/")[0])), timeout=5)
    found.sendall(words)
    return found


def is_served(address: str) -> bool:
    """Does a reader get the page?"""
    with urllib.request.urlopen(address, timeout=5) as answer:
        return answer.status == 200


def test_the_oldest_stranger_makes_room(address: str) -> None:
    """However many say nothing, or half a request, the server holds no more than it can, and answers its reader."""
    strangers = [stranger(address, b"GET / HT" if i % 2 else b"") for i in range(2 * MOST)]
    assert is_served(address)
    assert [each.recv(1) for each in strangers[:MOST]] == MOST * [b""]
    for each in strangers:
        each.close()
    assert is_served(address)


def test_who_leaves_is_not_reported(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Or strangers would fill the reader's terminal."""
    for words in (b"", b"GET /", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 70000):
        one = stranger(address, words)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
        one.close()
    waiting = [stranger(address, b"") for _ in range(2 * MOST)]  # all before have been looked at when the first is cut
    assert waiting[0].recv(1) == b""
    for each in waiting:
        each.close()
    assert is_served(address)
    assert capfd.readouterr().err == ""
