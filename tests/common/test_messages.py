"""What a launcher and its agents say to each other."""

from __future__ import annotations

import json

import pytest

from workbench.common.messages import MARK, Decoder, Message, MessageError, encode

SAID = [Message("facts", {"words": ["a", "ü"]}), Message("wrote", {"rank": 3}, b"\x00\n" + MARK), Message("end", {})]


def test_messages_arrive_whole() -> None:
    """However they are cut on the way, and whatever a login shell has said before."""
    for step in [1, 2, 7, 10_000]:
        decoder, data = Decoder(), b"Welcome!\nlast login\n" + b"".join(map(encode, SAID))
        heard = [message for at in range(0, len(data), step) for message in decoder.feed(data[at : at + step])]
        assert (heard, decoder.before) == (SAID, b"Welcome!\nlast login\n")


def test_what_is_no_message_is_refused() -> None:
    """Once the first message has come."""
    for line in [
        b"hello\n",
        MARK + b"no json\n",
        MARK + b"[1]\n",
        MARK + json.dumps({"kind": 1, "bytes": 0}).encode() + b"\n",
        MARK + json.dumps({"kind": "a"}).encode() + b"\n",
        MARK + json.dumps({"kind": "a", "bytes": -1}).encode() + b"\n",
        MARK + b"x" * (2 << 20),
    ]:
        decoder = Decoder()
        assert list(decoder.feed(encode(SAID[0]))) == SAID[:1]
        with pytest.raises(MessageError):
            list(decoder.feed(line))
