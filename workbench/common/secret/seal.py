"""Messages that only a process that knows the job's secret can make.

Strangers may reach the control plane's port. So every message begins with a keyed hash (BLAKE2b, 16 bytes)
under the job's secret, which is sent over the launcher's own channel and never over this one. The hash also
covers the direction, the rank and a number that only grows, so a recorded message cannot be replayed. A message that is
not verified is dropped before a byte of it is decoded.

Between processes of one user on one machine the system itself says who is at the other end of a connection. There only
a connection's first message is sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

_HEADER = struct.Struct(">IQ")  # rank, number of the message
_SHORT = 16
MAC = 32
"""Bytes of :func:`mac`."""


class Seal:
    """Signs and verifies the messages of one direction.

    Example:
        >>> seal = Seal(b"secret", b"up")
        >>> rank, number, body = seal.open(seal.close(3, 1, b"hello"))
        >>> rank, number, body
        (3, 1, b'hello')
        >>> seal.open(b"anything else") is None
        True
    """

    def __init__(self, secret: bytes, direction: bytes) -> None:
        self._blank = hashlib.blake2b(key=secret, digest_size=_SHORT, person=direction)

    def close(self, rank: int, number: int, body: bytes) -> bytes:
        """The message as it goes on the wire."""
        signed = _HEADER.pack(rank, number) + body
        return self._proof(signed) + signed

    def open(self, message: bytes) -> tuple[int, int, bytes] | None:
        """(rank, number, body), or None if the message was not closed with the same secret."""
        if len(message) < _SHORT + _HEADER.size:
            return None
        proof, signed = message[:_SHORT], message[_SHORT:]
        if not hmac.compare_digest(proof, self._proof(signed)):
            return None
        rank, number = _HEADER.unpack_from(signed)
        return rank, number, signed[_HEADER.size :]

    def body(self, message: bytes) -> bytes:
        """As :meth:`open`, the body alone; empty if the message is not to be believed."""
        opened = self.open(message)
        return opened[2] if opened else b""

    def _proof(self, signed: bytes) -> bytes:
        proof = self._blank.copy()
        proof.update(signed)
        return proof.digest()


def derived(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """Another key, from which nobody finds the first one or those for other purposes."""
    return mac(key, purpose, b"".join(hashlib.blake2b(part).digest() for part in parts))


def mac(key: bytes, name: str, body: bytes) -> bytes:
    """A proof that whoever has the key wrote the body under this name."""
    named = name.encode()
    key = key if len(key) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.blake2b(key).digest()
    found = hashlib.blake2b(len(named).to_bytes(4, "big"), key=key, digest_size=MAC)
    found.update(named)
    found.update(body)
    return found.digest()
