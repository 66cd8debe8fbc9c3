"""Values between the judge and a notebook's process, as data: nothing that comes in is unpickled or imported.

A frame is two lengths, a text of JSON and the bytes of its arrays. Numbers, texts, lists and arrays travel by value.
What cannot travel stays where it is, and a number stands for it: see ``own`` and ``other`` of :class:`Values`.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np

from workbench.course.judging.plain import from_torch
from workbench.errors import WorkbenchError

_HEAD = struct.Struct("!II")
MOST_TEXT, MOST_BYTES = 1 << 24, 1 << 28
_DEEPEST, _LONGEST = 40, 1_000_000
_KINDS = "biufcSU"
_LARGEST_INT = 1 << 63
Outgoing = Callable[[Any, Callable[[Any], Any]], dict[str, Any]]
Incoming = Callable[[dict[str, Any], Callable[[Any], Any]], Any]


class ProtocolError(WorkbenchError):
    """The other side has sent what it never sends by itself."""


class NotDataError(WorkbenchError):
    """A value that cannot travel. Where a task needs such values, it says so by ``live=True``."""


class Values:
    """Turns values into JSON and bytes, and back.

    Args:
        outgoing: of an object that is no data, a dict that stands for it; it may pack parts of it.
        incoming: of such a dict, the object.
    """

    def __init__(self, outgoing: Outgoing, incoming: Incoming) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    def pack(self, value: Any, blobs: bytearray, depth: int = 0) -> Any:
        """Its JSON; bytes are added to ``blobs``.

        Raises:
            NotDataError: it is nested too deeply, or too long.
        """
        if isinstance(value, Enum):  # which may be a text as well
            return self._outgoing(value, lambda part: part)
        if value is None or isinstance(value, (bool, str)):
            return value if value is None or isinstance(value, bool) else str(value)
        if isinstance(value, int) and type(value).__module__ == "builtins":
            return value if -_LARGEST_INT <= value < _LARGEST_INT else {"t": "int", "v": hex(value)}
        if isinstance(value, (float, Fraction, Decimal)) and not isinstance(value, np.generic):
            return float(value)
        if depth > _DEEPEST:
            raise NotDataError(f"It is nested more than {_DEEPEST} levels deep.")
        value = from_torch(value)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _KINDS:
            return self._array(value, blobs)
        return self._compound(value, blobs, depth + 1)

    def _array(self, value: Any, blobs: bytearray) -> dict[str, Any]:
        _bounded(len(blobs) + value.nbytes)  # before it is copied: 300 MB take seconds
        at, raw = len(blobs), np.ascontiguousarray(value).tobytes()
        blobs += raw
        tag = "array" if isinstance(value, np.ndarray) else "scalar"
        return {"t": tag, "d": value.dtype.str, "s": list(value.shape), "v": [at, len(raw)]}

    def _compound(self, value: Any, blobs: bytearray, depth: int) -> Any:
        if isinstance(value, (bytes, bytearray)):
            _bounded(len(blobs) + len(value))
            blobs += value
            return {"t": "bytes", "v": [len(blobs) - len(value), len(value)]}
        if isinstance(value, complex):
            return {"t": "complex", "v": [value.real, value.imag]}
        if isinstance(value, range):
            return {"t": "range", "v": [value.start, value.stop, value.step]}
        if isinstance(value, dict):
            _short(value)
            pairs = [[self.pack(key, blobs, depth), self.pack(one, blobs, depth)] for key, one in value.items()]
            return {"t": "dict", "v": pairs}
        tag = next((tag for tag, kind in _SEQUENCES.items() if isinstance(value, kind)), "")
        if not tag and isinstance(value, (map, filter, zip, enumerate, reversed, Iterator)):
            tag, value = "iterator", list(itertools.islice(value, _LONGEST + 1))
        if tag:
            _short(value)
            items = [self.pack(one, blobs, depth) for one in value]
            return items if tag == "list" else {"t": tag, "v": items}
        return self._outgoing(value, lambda part: self.pack(part, blobs, depth))

    def unpack(self, found: Any, blobs: memoryview) -> Any:
        """The value of JSON and bytes.

        Raises:
            ProtocolError: it stands for nothing.
        """
        if found is None or isinstance(found, (bool, int, float, str)):
            return found
        if isinstance(found, list):
            return [self.unpack(one, blobs) for one in found]
        try:
            tag, value = found["t"], found.get("v")
            if tag in ("array", "scalar"):
                array = np.frombuffer(_part(value, blobs), _dtype(found["d"])).reshape([int(n) for n in found["s"]])
                return array.copy() if tag == "array" else array.reshape(())[()]
            if tag == "dict":
                return {self.unpack(key, blobs): self.unpack(one, blobs) for key, one in value}
            if tag in _SEQUENCES:
                return _SEQUENCES[tag](self.unpack(one, blobs) for one in value)
            if tag in _SMALL:
                return _SMALL[tag](value)
            if tag == "iterator":
                return iter([self.unpack(one, blobs) for one in value])
            if tag == "bytes":
                return bytes(_part(value, blobs))
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise ProtocolError(f"A value that cannot be read: {type(error).__name__}.") from None
        try:
            return self._incoming(found, lambda part: self.unpack(part, blobs))
        except (TypeError, ValueError, KeyError) as error:
            raise ProtocolError(f"An object that cannot be read: {type(error).__name__}.") from None


_SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_SMALL: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "complex": lambda parts: complex(*map(float, parts)),
    "range": lambda parts: range(*map(int, parts)),
}


def _short(value: Any) -> None:
    if len(value) > _LONGEST:
        raise NotDataError(f"It has more than {_LONGEST:,} items.")


def _bounded(size: int, text: int = 0) -> None:
    if text > MOST_TEXT or size > MOST_BYTES:
        raise NotDataError(f"It is larger than {MOST_BYTES >> 20} MiB, or than {MOST_TEXT >> 20} MiB as text.")


def _part(value: Any, blobs: memoryview) -> memoryview:
    at, length = map(int, value)
    if not 0 <= at <= at + length <= len(blobs):
        raise ValueError
    return blobs[at : at + length]


def _dtype(text: str) -> np.dtype[Any]:
    found = np.dtype(str(text))
    if found.kind not in _KINDS:
        raise ValueError
    return found


def send(wire: socket.socket, message: dict[str, Any], blobs: bytearray) -> None:
    """Send a frame.

    Raises:
        NotDataError: it is too large.
        OSError: nobody is there any more.
    """
    text = json.dumps(message).encode()
    _bounded(len(blobs), len(text))
    wire.sendall(_HEAD.pack(len(text), len(blobs)) + text + bytes(blobs))


def receive(wire: socket.socket) -> tuple[dict[str, Any], memoryview]:
    """The next frame.

    Raises:
        EOFError: there is none.
        ProtocolError: it is none of ours, or too large.
    """
    length, size = _HEAD.unpack(_exactly(wire, _HEAD.size))
    if length > MOST_TEXT or size > MOST_BYTES:
        raise ProtocolError("A frame that is too large.")
    text = _exactly(wire, length)
    try:
        message = json.loads(bytes(text))
    except (ValueError, RecursionError):
        raise ProtocolError("A frame that is not JSON.") from None
    if not isinstance(message, dict):
        raise ProtocolError("A frame that is no message.")
    return message, _exactly(wire, size)


def _exactly(wire: socket.socket, size: int) -> memoryview:
    found, at = bytearray(min(size, 1 << 16)), 0
    while at < size:
        if at == len(found):  # no memory for what is announced, only for what comes
            found.extend(bytes(min(size - at, len(found))))
        try:
            got = wire.recv_into(memoryview(found)[at:])
        except OSError:
            got = 0
        if not got:
            raise EOFError
        at += got
    return memoryview(found)[:size]
