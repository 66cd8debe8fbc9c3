"""Strangers: what they send to a port of a job, with plain sockets."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Address = tuple[str, int]
GREETING = 16  # bytes that a job says first


def visit(address: Address) -> socket.socket:
    """A connection on which the job has said its number."""
    sock = socket.create_connection(address, 10.0)
    found = b""
    while len(found) < GREETING:
        found += sock.recv(GREETING - len(found))
    return sock


def cut_off(sock: socket.socket, limit_s: float = 10.0) -> bool:
    """Does the job end this connection, and says nothing more on it?"""
    sock.settimeout(limit_s)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


class Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def noises(path: Path) -> list[bytes]:
    """What is no handshake. The first ones are long enough to be one."""
    return [
        os.urandom(4096),
        bytes(52),
        b"\xff" * 52,
        b"GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nUser-Agent: none\r\n\r\n",
        pickle.dumps(Bomb(path)) + bytes(100),
        os.urandom(1 << 22),
    ]


class Recorder:
    """Stands between two ends, and keeps what the one that connects says.

    Attributes:
        address: where it listens.
        said: by connection, what its beginner has said.
    """

    def __init__(self, behind: Address) -> None:
        self._behind, self._listener = behind, socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()
        self.said: list[bytearray] = []
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._run)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                guest, _ = self._listener.accept()
                behind = socket.create_connection(self._behind)
                said = bytearray()
                self.said.append(said)
                self._ends += guest, behind
                self._start(self._pass_on, guest, behind, said)
                self._start(self._pass_on, behind, guest, bytearray())

    def _pass_on(self, one: socket.socket, other: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                kept += data
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Listen no more, and end what goes through."""
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)
        for end in (self._listener, *self._ends):
            end.close()


@contextlib.contextmanager
def listener(say: Callable[[socket.socket], None]) -> Iterator[Address]:
    """A stranger who listens: ``say`` is called with each connection, on a thread; it stays open until the end."""
    server, guests = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                guest, _ = server.accept()
                guests.append(guest)
                say(guest)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield server.getsockname()
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5.0)
        for guest in guests:
            guest.close()


@contextlib.contextmanager
def no_free_files() -> Iterator[None]:
    """This process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.dup(0)
    os.close(used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))  # the lowest free number is not allowed any more
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def trickle(sock: socket.socket, pause_s: float, limit_s: float) -> float:
    """Send a byte now and then until the job ends it; how long that took."""
    begun = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() < begun + limit_s:
            sock.sendall(b"\0")
            sock.settimeout(pause_s)
            try:
                if not sock.recv(1):
                    break
            except TimeoutError:
                pass
    return time.monotonic() - begun
