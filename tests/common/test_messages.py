"""What a launcher and its agents say to each other."""

from __future__ import annotations

import json

import pytest

from workbench.common.messages import MARK, Decoder, Message, MessageError, encode

SAID = [Message("facts", {"words": ["a", "ü"]}), Message("wrote", {"rank": 3}, b"\x00\n" + MARK), Message("end", {})]


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
def test_messages_arrive_whole(step: int) -> None:
    """However they are cut on the way, and whatever a login shell has said before."""
    decoder, data = Decoder(), b"Welcome!\nlast login\n" + b"".join(map(encode, SAID))
    heard = [message for at in range(0, len(data), step) for message in decoder.feed(data[at : at + step])]
    assert (heard, decoder.before) == (SAID, b"Welcome!\nlast login\n")


@pytest.mark.parametrize(
    "line",
    [
        b"hello\n",
        MARK + b"no json\n",
        MARK + b"[1]\n",
        MARK + json.dumps({"kind": 1, "bytes": 0}).encode() + b"\n",
        MARK + json.dumps({"kind": "a"}).encode() + b"\n",
        MARK + json.dumps({"kind": "a", "bytes": -1}).encode() + b"\n",
        MARK + b"x" * (2 << 20),
    ],
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    """Once the first message has come."""
    decoder = Decoder()
    assert list(decoder.feed(encode(SAID[0]))) == SAID[:1]
    with pytest.raises(MessageError):
        list(decoder.feed(line))
