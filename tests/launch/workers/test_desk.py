"""The socket where workers tell of themselves: what they say, and others that come."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.common.messages import Message, encode
from workbench.launch.workers import desk as desk_module
from workbench.launch.workers.desk import CUT, NAME, Desk

pytestmark = pytest.mark.timeout(30)
HERE = encode(Message("here", {"worker": 3, "pid": 7}))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk at which nobody is."""
    made = Desk(str(tmp_path / NAME))
    yield made
    made.close()


def guest(desk: Desk, data: bytes = b"") -> socket.socket:
    """Somebody who connects and says something."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(5)
    made.connect(desk.path)
    made.sendall(data)
    return made


def heard(desk: Desk, count: int, limit_s: float = 5) -> list[tuple[int, str]]:
    """So many messages: who says what kind."""
    found: list[tuple[int, str]] = []
    until = time.monotonic() + limit_s
    while len(found) < count and time.monotonic() < until:
        found += [(worker, message.kind) for worker, message in desk.hear()]
    return found


def test_a_worker_comes_speaks_and_goes(desk: Desk) -> None:
    """Its messages are heard in order, in whatever pieces they come; the last one stands for its end."""
    with guest(desk) as worker:
        said = HERE + encode(Message("value", {"epoch": 1}, b"x" * 100_000)) + encode(Message("pong", {}))
        sender = threading.Thread(target=worker.sendall, args=[said])
        sender.start()
        assert heard(desk, 3) == [(3, "here"), (3, "value"), (3, "pong")]
        sender.join()
        assert desk.pid(3) == 7
        desk.tell(3, Message("epoch", {"rank": 0}, b"data"))
        assert worker.recv(1000) == encode(Message("epoch", {"rank": 0}, b"data"))
    assert heard(desk, 1) == [(3, CUT)]
    assert (desk.pid(3), desk.silent_for(3)) == (0, 0.0)
    desk.tell(3, Message("epoch", {}))  # nobody hears it, and nothing fails


@pytest.mark.parametrize(
    "said",
    [b"garbage\n", encode(Message("come", {})), encode(Message("here", {"worker": "3", "pid": 7})), b"x" * (2 << 20)],
    ids=["garbage", "no name", "a text for a number", "too long"],
)
def test_who_does_not_speak_like_a_worker_is_cut_off(desk: Desk, said: bytes) -> None:
    """And heard by nobody."""
    with guest(desk) as stranger:
        sender = threading.Thread(target=send, args=[stranger, said])
        sender.start()
        assert heard(desk, 1, limit_s=1) == []
        sender.join()
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(10) == b""


def send(sock: socket.socket, data: bytes) -> None:
    """All of it, or what the other end takes."""
    with contextlib.suppress(OSError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)


def test_a_long_path(tmp_path: Path) -> None:
    """Where the system would refuse it, there is another, which this user alone can enter and which goes in the end."""
    made = Desk(str(tmp_path / ("x" * 120) / NAME))
    folder = Path(made.path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    with guest(made, HERE):
        assert heard(made, 1) == [(3, "here")]
    made.close()
    assert not folder.exists()


def test_nobody_takes_a_workers_place(desk: Desk) -> None:
    """Who says second that it is this worker, a forked child for one, is cut off; the worker stays."""
    with guest(desk, HERE) as worker, guest(desk, HERE + encode(Message("come", {}))) as second:
        assert heard(desk, 1) == [(3, "here")]
        assert heard(desk, 1, limit_s=1) == []
        assert second.recv(10) == b""
        worker.sendall(encode(Message("pong", {})))
        assert heard(desk, 1) == [(3, "pong")]


def test_a_worker_that_reads_nothing_is_cut_off(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not fill the launcher's memory."""
    monkeypatch.setattr(desk_module, "_MOST_UNREAD", 1 << 20)
    with guest(desk, HERE):
        assert heard(desk, 1) == [(3, "here")]
        for _ in range(40):
            desk.tell(3, Message("values", {}, b"x" * (100 << 10)))
        assert heard(desk, 1) == [(3, CUT)]
