"""What a launcher and its agents say to each other over two pipes: ssh's, srun's, or a local process's.

A message is a line of JSON and then, where it has some, bytes. Whatever arrives before the first message is not ours:
a login shell may greet whoever comes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_LONGEST = 1 << 20  # of a line
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
        self._open, self._begun = b"", False

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
            greeting, mark, rest = self._open.partition(MARK)
            if not mark:
                self.before = self._open[:_LONGEST]
                return None
            self.before, self._open, self._begun = greeting, mark + rest, True
        line, end, rest = self._open.partition(b"\n")
        if not end:
            if len(line) > _LONGEST:
                raise MessageError(f"a line of more than {_LONGEST} bytes")
            return None
        head = _parsed(line)
        count = head.pop("bytes")
        if len(rest) < count:
            return None
        self._open = rest[count:]
        return Message(head.pop("kind"), head, rest[:count])


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        if not line.startswith(MARK):
            raise ValueError("it does not begin like one")
        head = json.loads(line[len(MARK) :])
        if not isinstance(head, dict) or not isinstance(head.get("kind"), str):
            raise ValueError("it has no kind")
        if type(head.get("bytes")) is not int or head["bytes"] < 0:
            raise ValueError("it does not say how many bytes follow")
    except ValueError as error:
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


__all__ = ["MARK", "Decoder", "Message", "MessageError", "encode", "write"]
