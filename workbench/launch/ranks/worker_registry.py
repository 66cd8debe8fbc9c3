"""Where the workers of one machine tell of themselves: a socket in the job's folder, which no other user can enter."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.common.messages import Decoder, Message, MessageError, encode
from workbench.common.ports import peer

NAME = "members"
"""The socket, in the job's folder."""
CUT = "cut"
"""Kind of the message that stands for the end of a worker's connection."""
_LONGEST = 100  # of a path, which the system wants below 108 bytes
_MOST_UNREAD = 64 << 20  # bytes that are kept for a worker that reads nothing


@dataclass
class _WorkerConnection:
    """A connection; ``worker`` is -1 until it has said who it is."""

    socket: socket.socket
    worker: int = -1
    pid: int = 0
    decoder: Decoder = field(default_factory=Decoder)
    pending: bytes = b""
    last_seen: float = 0.0


class WorkerRegistry:
    """The launcher's end of all workers' connections. One thread uses it.

    Args:
        path: of the socket, which is made. Where it is longer than a socket's may be, a short one is made instead.

    Attributes:
        path: the socket's.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="workbench-", dir="/tmp") if len(path) > _LONGEST else ""
        self.path = f"{self._folder}/{NAME}" if self._folder else path
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.path)
        self._listening.listen(128)
        self._listening.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._connections: dict[int, _WorkerConnection] = {}

    def fileno(self) -> int:
        """Readable when there is something to hear, or room for what is still to be told."""
        return self._selector.fileno()

    def receive(self) -> Iterator[tuple[int, Message]]:
        """What workers have said since the last call; never waits. :data:`CUT` is the last of a worker."""
        for key, events in self._selector.select(0.0):
            if key.fileobj is self._listening:
                self._accept()
                continue
            connection: _WorkerConnection = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                yield from self._read(connection)

    def send(self, worker: int, message: Message) -> None:
        """Tell a worker something; nothing if it is not here any more."""
        connection = self._connections.get(worker)
        if connection is None:
            return
        connection.pending += encode(message)
        if len(connection.pending) > _MOST_UNREAD:
            connection.pending = b""
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)  # its end is read next
        self._flush(connection)

    def silent_for(self, worker: int) -> float:
        """How many seconds ago a worker was heard last; 0 if it has no connection."""
        connection = self._connections.get(worker)
        return time.monotonic() - connection.last_seen if connection else 0.0

    def pid(self, worker: int) -> int:
        """Its process; 0 if it is not here."""
        connection = self._connections.get(worker)
        return connection.pid if connection else 0

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        try:
            visitor, _ = self._listening.accept()
        except OSError:
            return
        if peer(visitor)[1] not in (-1, os.getuid()):  # the folder keeps others away, too
            visitor.close()
            return
        visitor.setblocking(False)
        self._selector.register(visitor, selectors.EVENT_READ, _WorkerConnection(visitor, last_seen=time.monotonic()))

    def _read(self, connection: _WorkerConnection) -> Iterator[tuple[int, Message]]:
        try:
            data = connection.socket.recv(1 << 16)
            messages = list(connection.decoder.feed(data))
        except BlockingIOError:
            return
        except (OSError, MessageError):
            data, messages = b"", []
        connection.last_seen = time.monotonic()
        for message in messages:
            if connection.worker < 0 and not self._introduce(connection, message):
                data = b""  # cut off
                break
            yield connection.worker, message
        if not data:
            self._drop(connection)
            if self._connections.get(connection.worker) is connection:
                del self._connections[connection.worker]
                yield connection.worker, Message(CUT, {})

    def _introduce(self, connection: _WorkerConnection, message: Message) -> bool:
        """Take who says first who it is. False for others, such as a child that was forked from a worker."""
        worker, pid = message.fields.get("worker"), message.fields.get("pid")
        if message.kind != "here" or type(worker) is not int or type(pid) is not int or worker in self._connections:
            return False
        connection.worker, connection.pid = worker, pid
        self._connections[worker] = connection
        return True

    def _drop(self, connection: _WorkerConnection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _flush(self, connection: _WorkerConnection) -> None:
        with contextlib.suppress(OSError):  # its end is read next
            while connection.pending:
                connection.pending = connection.pending[connection.socket.send(connection.pending) :]
        if connection.socket.fileno() >= 0:
            writes = selectors.EVENT_WRITE if connection.pending else 0
            self._selector.modify(connection.socket, selectors.EVENT_READ | writes, connection)
