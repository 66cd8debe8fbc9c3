"""How fast is the way from one host to another?

``workbench doctor --hosts`` lets one host :func:`answer_one`, and another :func:`measure`: small round trips, then
bytes in one direction. The receiver's clock counts, so what a slow network still holds in its buffers does not.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import select
import socket
import statistics
import struct
import threading
import time

from workbench.common.ports import listen
from workbench.launch.hosts.reach import PortAddress

_ROUNDS, _ROUNDS_S = 200, 0.3
_BULK_S, _BULK_BYTES = 1.0, 256 << 20
_LIMIT_S = 5.0  # of all of a measurement
_CHUNK = bytes(1 << 18)
_RESULT = struct.Struct("!Qd")  # bytes, seconds
_ECHO, _BULK = b"e", b"b"


def answer_one(address: str, low: int = 0, high: int = 0) -> PortAddress:
    """Open a port for one measurement, which a thread answers; after some seconds it is closed in any case.

    Args:
        address, low, high: see :class:`Port`.

    Returns:
        Where to connect to, and the word without which nothing is answered.

    Raises:
        OSError: no port is free.
    """
    listener, word = listen(address, (low, high)), secrets.token_hex(8)
    threading.Thread(target=_answer_one, args=(listener, word), daemon=True).start()
    return PortAddress(address, listener.getsockname()[1], word)


def _answer_one(listener: socket.socket, word: str) -> None:
    until = time.monotonic() + _LIMIT_S
    with listener, contextlib.suppress(OSError):
        while (left_s := until - time.monotonic()) > 0:
            listener.settimeout(left_s)
            guest, _ = listener.accept()
            with guest, contextlib.suppress(OSError):
                guest.settimeout(1.0)  # a stranger who says nothing costs no more
                if hmac.compare_digest(_exactly(guest, len(word)), word.encode()):
                    guest.settimeout(_LIMIT_S)
                    return _answer(guest)


def _answer(guest: socket.socket) -> None:
    """Echo small messages; then count what comes until there is enough, and say so."""
    guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while (said := guest.recv(1)) == _ECHO:
        guest.sendall(said)
    begun, got, room = time.monotonic(), 0, bytearray(1 << 20)
    while got < _BULK_BYTES and time.monotonic() - begun < _BULK_S and (n := guest.recv_into(room)):
        got += n
    guest.sendall(_RESULT.pack(got, time.monotonic() - begun))
    while guest.recv_into(room):  # to close with bytes unread would take the result back
        pass


def measure(place: PortAddress) -> tuple[float, float]:
    """Measure the way to a host that answers there; it takes about a second, and sends 256 MiB at most.

    Returns:
        The median time of a small round trip, in µs, and how fast bytes go there, in MB/s.

    Raises:
        OSError: it does not answer, or not in time.

    Example:
        >>> latency_us, megabytes_per_s = measure(answer_one("127.0.0.1"))
        >>> latency_us < 1e5, megabytes_per_s > 1
        (True, True)
    """
    with socket.create_connection((place.address, place.port), timeout=_LIMIT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(place.word.encode())
        rounds, begun = list[float](), time.perf_counter()
        while len(rounds) < _ROUNDS and (now := time.perf_counter()) - begun < _ROUNDS_S:
            sock.sendall(_ECHO)
            _exactly(sock, 1)
            rounds.append(time.perf_counter() - now)
        sock.sendall(_BULK)
        got, took_s = _RESULT.unpack(_send_until_answered(sock))
    return statistics.median(rounds) * 1e6, got / took_s / 1e6


def _send_until_answered(sock: socket.socket) -> bytes:
    until = time.monotonic() + _LIMIT_S
    sock.setblocking(False)
    while (left_s := until - time.monotonic()) > 0:
        readable, writable, _ = select.select([sock], [sock], [], left_s)
        if readable:
            sock.settimeout(_LIMIT_S)
            return _exactly(sock, _RESULT.size)
        if writable:
            with contextlib.suppress(BlockingIOError):
                sock.send(_CHUNK)
    raise TimeoutError(f"no answer within {_LIMIT_S:g} s")


def _exactly(sock: socket.socket, n: int) -> bytes:
    found = b""
    while len(found) < n:
        if not (more := sock.recv(n - len(found))):
            raise ConnectionError("the connection was closed early")
        found += more
    return found


__all__ = ["answer_one", "measure"]
