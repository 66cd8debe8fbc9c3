"""Sockets in a browser: between threads of one process, without a system that carries the bytes.

:func:`install` puts stand-ins in the place of what the control plane uses of ``socket``, ``select`` and ``selectors``:
pairs, Linux's sockets with a name but no file, and ``poll``.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import struct
from collections import deque
from itertools import count
from typing import Any

from workbench.course.browser.threads import THREADS

_AF_UNIX, _SO_PEERCRED = 1, 17  # Linux's
_NUMBERS = count(1 << 20)  # no file has one of these
_OPEN: dict[int, Socket] = {}
_BOUND: dict[Any, Socket] = {}
_POLLS: list[Poll] = []  # in which somebody waits


class Socket:
    """One end of a stream of bytes, or where such begin."""

    def __init__(self, family: int = _AF_UNIX, *more: int) -> None:
        self.family, self._number = family, next(_NUMBERS)
        self._name: Any = b""
        self._peer: Socket | None = None
        self._arrived = bytearray()
        self._visitors: deque[Socket] = deque()
        self._ended = False  # the other end says no more
        _OPEN[self._number] = self

    def fileno(self) -> int:
        return self._number

    def setblocking(self, flag: bool) -> None:
        """Nothing here blocks."""

    def settimeout(self, timeout_s: float | None) -> None:
        """Nothing here blocks."""

    def setsockopt(self, *option: Any) -> None:
        """There are none."""

    def getsockopt(self, level: int, option: int, length: int = 0) -> bytes:
        """The process and the user at the other end: this one."""
        return struct.pack("iii", os.getpid(), os.getuid(), 0)

    def getsockname(self) -> Any:
        return self._name

    def bind(self, name: str) -> None:
        self._name = name.encode() if isinstance(name, str) else name
        _BOUND[self._name] = self

    def listen(self, backlog: int = 0) -> None:
        """No-op: it does from its bind on."""

    def connect(self, name: str) -> None:
        there = _BOUND.get(name.encode() if isinstance(name, str) else name)
        if there is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self._join(visitor := Socket(self.family))
        there._visitors.append(visitor)
        _changed()

    def _join(self, other: Socket) -> None:
        self._peer, other._peer = other, self

    def accept(self) -> tuple[Socket, Any]:
        if not self._visitors:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return self._visitors.popleft(), b""

    def send(self, data: bytes | bytearray, flags: int = 0) -> int:
        there = self._peer
        if there is None or there._number < 0:
            raise BrokenPipeError(32, "Broken pipe")
        there._arrived += data
        _changed()
        return len(data)

    sendall = send

    def recv(self, most: int, flags: int = 0) -> bytes:
        if not self._arrived and not self._ended:
            THREADS.give_way()
        if self._arrived or self._ended:
            data = bytes(self._arrived[:most])
            del self._arrived[:most]
            return data
        raise BlockingIOError(11, "Resource temporarily unavailable")

    def shutdown(self, how: int) -> None:
        if self._peer is not None:
            self._peer._ended = True
            _changed()

    def close(self) -> None:
        if self._number >= 0:
            _OPEN.pop(self._number, None)
            _BOUND.pop(self._name, None)
            self._number = -1
            self.shutdown(0)

    def ready(self, events: int) -> int:
        """Which of these events are there?"""
        found = select.POLLOUT if self._peer is not None else 0
        if self._arrived or self._visitors or self._ended:
            found |= select.POLLIN
        return found & events

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def pair(*kind: int) -> tuple[Socket, Socket]:
    """In place of ``socket.socketpair``."""
    here, there = Socket(), Socket()
    here._join(there)
    return here, there


class Poll:
    """In place of ``select.poll``."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}
        self.waiting: Any = None

    def register(self, file: Any, events: int = select.POLLIN | select.POLLOUT) -> None:
        self._wanted[file if isinstance(file, int) else file.fileno()] = events

    modify = register

    def unregister(self, file: Any) -> None:
        del self._wanted[file if isinstance(file, int) else file.fileno()]

    def look(self) -> list[tuple[int, int]]:
        return [
            (number, found)
            for number, events in list(self._wanted.items())
            if number in _OPEN and (found := _OPEN[number].ready(events))
        ]

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        if found := self.look():
            return found
        if timeout_ms is not None and timeout_ms <= 0:
            THREADS.give_way()
            return self.look()
        self.waiting = THREADS.current
        _POLLS.append(self)
        try:
            THREADS.wait(None if timeout_ms is None else timeout_ms / 1000)
        finally:
            if self in _POLLS:
                _POLLS.remove(self)
        return self.look()


def _changed() -> None:
    """Who waits for what is there now goes on."""
    for each in [one for one in _POLLS if one.look()]:
        _POLLS.remove(each)
        THREADS.wake(each.waiting)


class Selector:
    """In place of ``selectors.DefaultSelector``."""

    def __init__(self) -> None:
        self._poll, self._keys = Poll(), dict[int, selectors.SelectorKey]()

    def register(self, file: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(file, file.fileno(), events, data)
        reads, writes = events & selectors.EVENT_READ, events & selectors.EVENT_WRITE
        self._poll.register(key.fd, bool(reads) * select.POLLIN | bool(writes) * select.POLLOUT)
        self._keys[key.fd] = key
        return key

    modify = register

    def unregister(self, file: Any) -> selectors.SelectorKey:
        self._poll.unregister(file.fileno())
        return self._keys.pop(file.fileno())

    def select(self, timeout_s: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        reads, writes = selectors.EVENT_READ, selectors.EVENT_WRITE
        return [
            (self._keys[number], bool(events & select.POLLIN) * reads | bool(events & select.POLLOUT) * writes)
            for number, events in found
        ]

    def close(self) -> None:
        self._keys.clear()


def install() -> None:
    """Put the stand-ins in their places."""
    socket.socket, socket.socketpair = Socket, pair  # type: ignore[misc, assignment]
    socket.AF_UNIX, socket.SO_PEERCRED = _AF_UNIX, _SO_PEERCRED  # type: ignore[misc, assignment]
    select.poll = Poll  # type: ignore[misc, assignment]
    selectors.DefaultSelector = Selector  # type: ignore[misc, assignment]
