"""The one rule for who connects to a port of ours: it may be a stranger's until it has proven that it knows a secret.

Only a few such connections are open at once, and each for a short time (:mod:`workbench.common.secret.handshake`). Of
too many the oldest is cut off: who knows the secret shows it at once.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable

MOST = 64
"""So many handshakes at once, besides one per rank."""
_PAUSE_S = 0.01
_CLOSED = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Accepts connections, and meets each on a thread of its own, for a stranger may say nothing.

    Args:
        sock: listens.
        meet: gets the connection, and ``known``, which it calls as soon as the other side has proven itself: from then
            on it is not cut off for others. Does it keep the connection? Else it is closed, as after an ``OSError``.
        most: so many that have not proven anything.
        name: of the threads.

    Example:
        >>> listener = Listener(socket.create_server(("127.0.0.1", 0)), lambda sock, known: False)
        >>> with socket.create_connection(listener.socket.getsockname()) as stranger:
        ...     stranger.recv(1)
        b''
        >>> listener.close()
    """

    def __init__(
        self,
        sock: socket.socket,
        meet: Callable[[socket.socket, Callable[[], None]], bool],
        most: int = MOST,
        name: str = "workbench-guest",
    ) -> None:
        self.socket, self._meet, self._most, self._name = sock, meet, most, name
        self._strangers, self._lock, self._closed = dict[socket.socket, None](), threading.Lock(), False
        threading.Thread(target=self._accept, name=name, daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more, and cut off who has not proven anything."""
        self._closed = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # its thread wakes up
        self.socket.close()
        with self._lock:
            while self._strangers:
                self._cut_off_oldest()

    def _accept(self) -> None:
        while not self._closed:
            try:
                guest, _ = self.socket.accept()
            except OSError as error:
                if self._closed or not self._goes_on(error):
                    return
                continue
            with self._lock:
                while len(self._strangers) >= self._most:
                    self._cut_off_oldest()
                self._strangers[guest] = None
            try:
                threading.Thread(target=self._greet, args=[guest], name=self._name, daemon=True).start()
            except RuntimeError:  # so many threads are not allowed
                self._known(guest)
                guest.close()

    def _greet(self, guest: socket.socket) -> None:
        kept = False
        try:
            with contextlib.suppress(OSError):
                kept = self._meet(guest, lambda: self._known(guest))
        finally:
            self._known(guest)
            if not kept:
                guest.close()

    def _known(self, guest: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(guest, None)

    def _goes_on(self, error: OSError) -> bool:
        """After an error of ``accept``: is the port open still? Where files have run out, the oldest gives way."""
        if error.errno in _OUT_OF_FILES:
            with self._lock:
                if self._strangers:
                    self._cut_off_oldest()
        time.sleep(_PAUSE_S)
        return error.errno not in _CLOSED  # others are one connection's, which was lost before it was accepted

    def _cut_off_oldest(self) -> None:
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it
