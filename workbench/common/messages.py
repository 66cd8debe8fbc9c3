"""What a launcher and its agents and ranks say to each other over pipes: ssh's, srun's, a local process's, a socket's.

A message is a line of JSON and then, where it has some, bytes. Whatever arrives before the first message is not ours:
a login shell may greet whoever comes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_LONGEST = 1 << 20  # of a line, and of a greeting
_MOST = 1 << 40  # bytes that may follow a line: a result of run() may be large
MARK = b"workbench-agent "
"""Begins each line."""


@dataclass(frozen=True)
class Message:
    """One message.

    Args:
        kind: what it is about; the receiver knows what each needs.
        fields: of JSON's types.
        data: bytes, such as what a rank has written.
    """

    kind: str
    fields: dict[str, Any]
    data: bytes = b""


class MessageError(Exception):
    """What came is no message."""


def encode(message: Message) -> bytes:
    r"""The message's bytes.

    Example:
        >>> encode(Message("wrote", {"rank": 1}, b"hello"))
        b'workbench-agent {"kind": "wrote", "rank": 1, "bytes": 5}\nhello'
    """
    head = {"kind": message.kind, **message.fields, "bytes": len(message.data)}
    return MARK + json.dumps(head).encode() + b"\n" + message.data


class Decoder:
    """Bytes in, whole messages out.

    Attributes:
        before: what came before the first message.

    Example:
        >>> decoder = Decoder()
        >>> whole = b"Welcome!" + encode(Message("wrote", {"rank": 1}, b"hello"))
        >>> list(decoder.feed(whole[:-2])), list(decoder.feed(whole[-2:])), decoder.before
        ([], [Message(kind='wrote', fields={'rank': 1}, data=b'hello')], b'Welcome!')
    """

    def __init__(self) -> None:
        self.before = b""
        self._open, self._begun = bytearray(), False
        self._head: dict[str, Any] | None = None  # of a message whose bytes are still to come

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that ``data`` completes.

        Raises:
            MessageError: it is none.
        """
        self._open += data
        while message := self._next():
            yield message

    def _next(self) -> Message | None:
        if not self._begun:
            begin = self._open.find(MARK)
            self.before = bytes(self._open[: begin if begin >= 0 else _LONGEST])
            if begin < 0:
                if len(self._open) > _LONGEST:
                    raise MessageError(f"more than {_LONGEST} bytes that are not a message: {self.before[:80]!r}")
                return None
            self._begun = True
            del self._open[:begin]
        if self._head is None:
            end = self._open.find(b"\n")
            if end > _LONGEST or (end < 0 and len(self._open) > _LONGEST):
                raise MessageError(f"a line of more than {_LONGEST} bytes")
            if end < 0:
                return None
            self._head = _parsed(bytes(self._open[:end]))
            del self._open[: end + 1]
        head, count = self._head, self._head["bytes"]
        if len(self._open) < count:
            return None
        data, self._head = bytes(self._open[:count]), None
        del self._open[:count]
        return Message(head["kind"], {name: head[name] for name in head.keys() - {"kind", "bytes"}}, data)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        if not line.startswith(MARK):
            raise ValueError("it does not begin like a message")
        head = json.loads(line[len(MARK) :])
        if not isinstance(head, dict) or not isinstance(head.get("kind"), str):
            raise ValueError("it has no kind")
        if type(head.get("bytes")) is not int or head["bytes"] < 0:
            raise ValueError("it does not say how many bytes follow")
        if head["bytes"] > _MOST:
            raise ValueError(f"{head['bytes']} bytes are too many")
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{line[:80]!r} is no message: {error}") from None
    return head


def write(file: int, message: Message) -> None:
    """Write all of it.

    Raises:
        OSError: nobody reads.
    """
    data = memoryview(encode(message))
    while data:
        data = data[os.write(file, data) :]
