"""Messages over a stream socket: each one is its length, in four bytes, and then its own bytes. Nothing blocks.

No thread stands between: who sends makes the system call itself, and the reader wakes up some microseconds later.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time

from workbench.common.ports import peer

_LENGTH = struct.Struct(">I")
_AT_ONCE = 1 << 18  # bytes read in one go; then others get their turn
_LINGER_S = 1.0


class Connection:
    """One end of a connection; it belongs to one thread.

    Args:
        sock: connected.
        largest: bytes of a message; whoever announces a longer one is cut off.

    Attributes:
        private: both ends are processes of one user on one machine: the system vouches for what comes.
        closed: nothing more will come: the other end is gone, or has sent what is no message.
        received: bytes that have come so far.

    Example:
        >>> here, there = (Connection(sock, largest=100) for sock in socket.socketpair())
        >>> here.send(b"hello"), here.send(b"you")
        (None, None)
        >>> there.receive()
        [b'hello', b'you']
        >>> here.close(); there.receive(), there.closed
        ([], True)
        >>> there.close()
    """

    def __init__(self, sock: socket.socket, largest: int) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # not TCP
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.largest, self.closed, self.received = sock, largest, False, 0
        self.private = peer(sock)[1] == os.getuid()
        self._in, self._out = bytearray(), bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def backlog(self) -> int:
        """Bytes that found no room yet; if there are any, call :meth:`flush` when the socket can be written."""
        return len(self._out)

    def send(self, message: bytes) -> None:
        """Send a message, or as much of it as finds room; the rest waits for :meth:`flush`."""
        frame = _LENGTH.pack(len(message)) + message
        if self._out:
            self._out += frame
            self.flush()
        else:
            self._out += frame[self._write(frame) :]

    def flush(self) -> None:
        """Send what has waited for room."""
        del self._out[: self._write(self._out)]

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # the other end is gone; what it said before can still be read
            return len(data)

    def receive(self) -> list[bytes]:
        """The messages that are there, in order; some of them, if there are very many."""
        try:
            data = self.socket.recv(_AT_ONCE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return []
        self.received += len(data)
        self._in += data
        return self._cut()

    def _cut(self) -> list[bytes]:
        messages, start, end = [], 0, len(self._in)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, start)
            if length > self.largest:
                self.closed = True
                break
            if end - start - _LENGTH.size < length:
                break
            start += _LENGTH.size + length
            messages.append(bytes(self._in[start - length : start]))
        del self._in[:start]
        return messages

    def finish(self) -> None:
        """Send what has waited, within a second, and say that this was all."""
        until = time.monotonic() + _LINGER_S
        poller = select.poll()
        poller.register(self.socket, select.POLLOUT)
        while self._out and poller.poll(max(0.0, until - time.monotonic()) * 1000):
            self.flush()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Finish, and give the socket back."""
        self.finish()
        self.socket.close()
