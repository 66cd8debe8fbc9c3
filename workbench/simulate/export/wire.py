"""Protobuf's wire format, as far as Chakra's traces need it: no protobuf package, no generated code.

A message is a row of fields: a key ``number << 3 | kind``, then the value. Kind 0 is a varint (seven bits a byte, the
low ones first, the high bit says that more follow), 1 is eight bytes, 2 is a length and so many bytes, 5 is four bytes.
A file is a row of messages, each after its length as a varint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_MASK = (1 << 64) - 1
_FIXED = {EIGHT: 8, FOUR: 4}


class CutError(ValueError):
    """The bytes end amid a value."""


def varint(value: int) -> bytes:
    """Encode; negative numbers as 64 bits.

    Example:
        >>> varint(1).hex(), varint(300).hex()
        ('01', 'ac02')
    """
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    """A field with an integer, a bool or an enum."""
    return varint(field << 3 | VARINT) + varint(value)


def double(field: int, value: float) -> bytes:
    """A field with a float of eight bytes."""
    return varint(field << 3 | EIGHT) + struct.pack("<d", value)


def text(field: int, value: bytes | str) -> bytes:
    """A field with a string, bytes, or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | BYTES) + varint(len(raw)) + raw


def packed(field: int, values: Iterable[int]) -> bytes:
    """A repeated field of integers; nothing if there are none."""
    raw = b"".join(map(varint, values))
    return text(field, raw) if raw else b""


def delimited(message: bytes) -> bytes:
    """A message as it stands in a file."""
    return varint(len(message)) + message


def fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Decode a message: numbers of fields, and an int of kind 0, bytes of all others.

    Raises:
        CutError: it ends amid a field.
        ValueError: a kind that is none of the four.
    """
    at = 0
    while at < len(raw):
        key, at = read_varint(raw, at)
        kind = key & 7
        if kind == VARINT:
            value, at = read_varint(raw, at)
            yield key >> 3, value
            continue
        if kind not in (BYTES, *_FIXED):
            raise ValueError(f"field {key >> 3} is of kind {kind}, which protobuf does not have")
        length, at = read_varint(raw, at) if kind == BYTES else (_FIXED[kind], at)
        yield key >> 3, _take(raw, at, length)
        at += length


def messages(raw: bytes) -> Iterator[bytes]:
    """The messages of a file.

    Raises:
        CutError: it ends amid one.
    """
    at = 0
    while at < len(raw):
        length, at = read_varint(raw, at)
        yield _take(raw, at, length)
        at += length


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """The value at a place, and the place behind it.

    Raises:
        CutError: the bytes end first.
        ValueError: it has more than ten bytes.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = _take(raw, at, 1)[0]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
    raise ValueError(f"the number at byte {at - 10} has no end")


def unpacked(raw: bytes) -> list[int]:
    """What :func:`packed` has put into a field."""
    values, at = list[int](), 0
    while at < len(raw):
        value, at = read_varint(raw, at)
        values.append(value)
    return values


def _take(raw: bytes, at: int, length: int) -> bytes:
    if at + length > len(raw):
        raise CutError(f"{length} bytes are expected at byte {at}, but only {len(raw) - at} are left")
    return raw[at : at + length]


__all__ = ["CutError", "delimited", "double", "fields", "messages", "number", "packed", "read_varint", "text"]
__all__ += ["unpacked", "varint"]
