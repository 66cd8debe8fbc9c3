"""What is no message, no agent and no port of ours: refused in time, with words that say so."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attackers import Bomb, listener
from running import environment

from workbench.common.messages import MARK, Decoder, Message, MessageError, encode
from workbench.launch.hosts.reach import Port, PortAddress, reach

AGENT = "from workbench.launch.hosts.agent import main; main()"
HERE = encode(Message("here", {}))

# --- messages -----------------------------------------------------------------------------------------

NONSENSE = [
    MARK + b"{}\n",
    MARK + b"[]\n",
    MARK + b"[" * 100_000 + b"\n",
    MARK + b'{"kind": 5, "bytes": 0}\n',
    MARK + b'{"kind": "x", "bytes": -1}\n',
    MARK + b'{"kind": "x", "bytes": true}\n',
    MARK + b'{"kind": "x", "bytes": 1e3}\n',
    MARK + b'{"kind": "x", "bytes": ' + b"9" * 5000 + b"}\n",
    MARK + b'{"kind": "x", "bytes": 10000000000000}\n',
    MARK + b"\xff\xfe\n",
    MARK + b" " * (2 << 20),
    HERE + b"Segmentation fault\n",
    HERE + bytes(2 << 20),
    os.urandom(3 << 20).replace(MARK, b""),
]


@pytest.mark.parametrize("data", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.parametrize("chunk", [1 << 16, 1 << 30])
def test_what_is_no_message(data: bytes, chunk: int) -> None:
    """It is an error, in one line of bounded length; nothing is kept without limit."""
    decoder = Decoder()

    def feed() -> None:
        for i in range(0, len(data), chunk):
            list(decoder.feed(data[i : i + chunk]))

    with pytest.raises(MessageError) as error:
        feed()
    assert len(str(error.value)) < 1000


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """Bytes of a message are handed on as they are."""
    data = pickle.dumps(Bomb(tmp_path / "bomb"))
    (message,) = Decoder().feed(encode(Message("wrote", {"rank": 1}, data)))
    assert message.data == data
    with pytest.raises(MessageError):
        list(Decoder().feed(HERE + data + b"\n"))
    assert not (tmp_path / "bomb").exists()


def test_a_large_message_in_small_parts() -> None:
    """What is still open is not copied for each part: 64 MiB take a moment."""
    data = os.urandom(1 << 20) * 64
    whole, decoder, found = encode(Message("file", {"name": "a"}, data)) + HERE, Decoder(), list[Message]()
    begun = time.monotonic()
    for i in range(0, len(whole), 1 << 16):
        found += decoder.feed(whole[i : i + (1 << 16)])
    assert time.monotonic() - begun < 5.0
    assert [message.kind for message in found] == ["file", "here"]
    assert found[0].data == data


# --- an agent -----------------------------------------------------------------------------------------


class Agent:
    """One on this machine, and a stranger at its pipes."""

    def __init__(self) -> None:
        words = [sys.executable, "-c", AGENT]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe)
        self._decoder = Decoder()
        assert self.hear().kind == "here"

    def say(self, data: bytes) -> None:
        """These bytes."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def hear(self) -> Message:
        """Its next word; the test's own deadline is that of this wait."""
        assert self.process.stdout
        while True:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "it has ended"
            for message in self._decoder.feed(data):
                return message

    def close(self) -> None:
        """End it."""
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self.process.wait()


@pytest.fixture
def agent() -> Iterator[Agent]:
    """It is killed in the end."""
    made = Agent()
    yield made
    made.close()


@pytest.mark.parametrize("data", [HERE[:20], b"\xff" * 5000, HERE + b"no message\n", MARK + b"[" * 10**5 + b"\n"])
def test_an_agent_that_is_told_nonsense_ends(data: bytes, agent: Agent) -> None:
    """With its input, at the latest; it does not crash, and starts nothing."""
    agent.say(data)
    assert agent.process.stdin
    agent.process.stdin.close()
    assert agent.process.wait(20.0) == 0
    assert agent.process.stderr
    assert b"Traceback" not in agent.process.stderr.read()


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("destroy", {}, "cannot do 'destroy'"),
        ("listen", {}, "listen cannot be understood: KeyError('address')"),
        ("listen", {"address": "10.99.99.99", "low": 0, "high": 0}, "no port is free at 10.99.99.99"),
        ("reach", {"places": {"a": 5}, "limit_s": 1}, "reach cannot be understood"),
        ("start", {"silence_s": "long"}, "start cannot be understood: ValueError"),
        ("start", {"silence_s": 60}, "start cannot be understood: KeyError('slots')"),
        ("signal", {"rank": 0, "number": 9}, "no ranks have been started here"),
    ],
)
def test_an_agent_says_what_it_cannot_do(kind: str, fields: dict[str, object], said: str, agent: Agent) -> None:
    """And goes on."""
    agent.say(encode(Message(kind, fields)))
    answer = agent.hear()
    assert (answer.kind, answer.fields["doing"]) == ("failed", kind)
    assert said in answer.fields["text"]
    agent.say(encode(Message("still here", {})))
    assert agent.hear().kind == "still here"


# --- ports of a rehearsal -----------------------------------------------------------------------------


def test_a_port_with_many_guests_who_say_nothing() -> None:
    """Each is told the word and sent away; the right one is served."""
    port = Port("127.0.0.1")
    strangers = [socket.create_connection(("127.0.0.1", port.number), 5.0) for _ in range(300)]
    found = reach({"here": PortAddress("127.0.0.1", port.number, port.word)}, 5.0, port)
    assert found == {"here": ""}
    for each in strangers[:200]:
        each.settimeout(5.0)
        with each.makefile("rb") as stream:
            assert stream.read().decode().rstrip(".") == port.word
    for each in strangers:
        each.close()
    port.close()


def test_a_guest_that_sends_without_end() -> None:
    """Nothing of it is read."""
    port = Port("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port.number)) as stranger:
        stranger.sendall(os.urandom(1 << 16))
        assert reach({"here": PortAddress("127.0.0.1", port.number, port.word)}, 5.0, port) == {"here": ""}
    port.close()


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", os.urandom(1 << 20), json.dumps({}).encode()])
def test_another_program_where_a_host_should_be(says: bytes) -> None:
    """It is named, or its silence is; the deadline holds."""

    def answer(guest: socket.socket) -> None:
        with contextlib.suppress(OSError):
            guest.sendall(says)

    with listener(answer) as address:
        found = reach({"there": PortAddress(*address, "word")}, 1.0)
    assert ("another program answers there" if says else "no answer within 1 s") in found["there"]
    assert len(found["there"]) < 600


def test_no_way_there() -> None:
    """What the system says at once is the answer: an address of another family, or of no network of this host."""
    found = reach({"there": PortAddress("255.255.255.255", 1, "word")}, 1.0)
    assert found["there"] in ("permission denied", "network is unreachable")
