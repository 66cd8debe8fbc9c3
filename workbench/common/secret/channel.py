"""Messages over a connection that is past its handshake: each is signed with a key of this connection alone."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

from workbench.common.messages import Decoder, Message, MessageError, encode
from workbench.common.secret.handshake import exactly
from workbench.common.secret.seal import Seal

_LENGTH = struct.Struct(">I")
_LONGEST = 1 << 26
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # a host that is gone is noticed after 25 s


class SealedChannel:
    """One end of a connection.

    Args:
        sock: connected, and past its handshake.
        key: of this connection, see :func:`workbench.common.secret.handshake.connect`.
        listened: is this the end that listened? The two ends sign differently.

    Example:
        >>> one, other = socket.socketpair()
        >>> here, there = SealedChannel(one, b"key", listened=True), SealedChannel(other, b"key", listened=False)
        >>> here.send("run", number=7)
        True
        >>> there.receive()
        Message(kind='run', fields={'number': 7}, data=b'')
        >>> here.close(), there.receive(), there.close()
        (None, None, None)
    """

    def __init__(self, sock: socket.socket, key: bytes, listened: bool) -> None:
        self._socket, self._lock = sock, threading.Lock()
        self._sign, self._verify = (Seal(key, b"down"), Seal(key, b"up"))[:: 1 if listened else -1]
        self._sent = self._received = 0
        sock.settimeout(None)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, kind: str, data: bytes = b"", /, **fields: Any) -> bool:
        """Send a message; False if nobody is there any more."""
        return self.send_message(Message(kind, fields, data))

    def send_message(self, message: Message) -> bool:
        """The same, of a message that is one already."""
        body = encode(message)
        with self._lock:
            self._sent += 1
            sealed = self._sign.close(0, self._sent, body)
            try:
                self._socket.sendall(_LENGTH.pack(len(sealed)) + sealed)
            except OSError:
                return False
        return True

    def receive(self, until: float = float("inf")) -> Message | None:
        """The next message; None when the other end is gone, is late, or says what only a stranger would.

        Args:
            until: deadline, by ``time.monotonic()``.
        """
        try:
            (length,) = _LENGTH.unpack(exactly(self._socket, _LENGTH.size, until))
            opened = self._verify.open(exactly(self._socket, length, until)) if length <= _LONGEST else None
            self._received += 1
            if opened is None or opened[1] != self._received:
                return None
            return next(iter(Decoder().feed(opened[2])), None)
        except (OSError, MessageError):
            return None

    def shut(self) -> None:
        """Send and receive no more; a thread that waits in :meth:`receive` goes on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection, when no thread uses it."""
        self.shut()
        self._socket.close()


def fields_of(message: Message | None, kind: str) -> Mapping[str, Any]:
    """The fields of a message of this kind; none of any other.

    Example:
        >>> fields_of(Message("here", {"slots": 2}), "here"), fields_of(None, "here")
        ({'slots': 2}, {})
    """
    return message.fields if message is not None and message.kind == kind else {}
