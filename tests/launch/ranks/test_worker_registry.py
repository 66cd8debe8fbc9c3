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
from workbench.launch.ranks import worker_registry as registry_module
from workbench.launch.ranks.worker_registry import CUT, NAME, WorkerRegistry

pytestmark = pytest.mark.timeout(30)
HERE = encode(Message("here", {"worker": 3, "pid": 7}))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[WorkerRegistry]:
    """A registry in which nobody is."""
    made = WorkerRegistry(str(tmp_path / NAME))
    yield made
    made.close()


def connection(registry: WorkerRegistry, data: bytes = b"") -> socket.socket:
    """Somebody who connects and says something."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(5)
    made.connect(registry.path)
    made.sendall(data)
    return made


def received(registry: WorkerRegistry, count: int, limit_s: float = 5) -> list[tuple[int, str]]:
    """So many messages: who says what kind."""
    found: list[tuple[int, str]] = []
    until = time.monotonic() + limit_s
    while len(found) < count and time.monotonic() < until:
        found += [(worker, message.kind) for worker, message in registry.receive()]
    return found


def test_a_worker_comes_speaks_and_goes(registry: WorkerRegistry) -> None:
    """Its messages are heard in order, in whatever pieces they come; the last one stands for its end."""
    with connection(registry) as worker:
        said = HERE + encode(Message("value", {"epoch": 1}, b"x" * 100_000)) + encode(Message("pong", {}))
        sender = threading.Thread(target=worker.sendall, args=[said])
        sender.start()
        assert received(registry, 3) == [(3, "here"), (3, "value"), (3, "pong")]
        sender.join()
        assert registry.pid(3) == 7
        registry.send(3, Message("epoch", {"rank": 0}, b"data"))
        assert worker.recv(1000) == encode(Message("epoch", {"rank": 0}, b"data"))
    assert received(registry, 1) == [(3, CUT)]
    assert (registry.pid(3), registry.silent_for(3)) == (0, 0.0)
    registry.send(3, Message("epoch", {}))  # nobody hears it, and nothing fails


@pytest.mark.parametrize(
    "said",
    [b"garbage\n", encode(Message("come", {})), encode(Message("here", {"worker": "3", "pid": 7})), b"x" * (2 << 20)],
    ids=["garbage", "no name", "a text for a number", "too long"],
)
def test_who_does_not_speak_like_a_worker_is_cut_off(registry: WorkerRegistry, said: bytes) -> None:
    """And heard by nobody."""
    with connection(registry) as stranger:
        sender = threading.Thread(target=send, args=[stranger, said])
        sender.start()
        assert received(registry, 1, limit_s=1) == []
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
    made = WorkerRegistry(str(tmp_path / ("x" * 120) / NAME))
    folder = Path(made.path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    with connection(made, HERE):
        assert received(made, 1) == [(3, "here")]
    made.close()
    assert not folder.exists()


def test_nobody_takes_a_workers_place(registry: WorkerRegistry) -> None:
    """Who says second that it is this worker, a forked child for one, is cut off; the worker stays."""
    with connection(registry, HERE) as worker, connection(registry, HERE + encode(Message("come", {}))) as second:
        assert received(registry, 1) == [(3, "here")]
        assert received(registry, 1, limit_s=1) == []
        assert second.recv(10) == b""
        worker.sendall(encode(Message("pong", {})))
        assert received(registry, 1) == [(3, "pong")]


def test_a_worker_that_reads_nothing_is_cut_off(registry: WorkerRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not fill the launcher's memory."""
    monkeypatch.setattr(registry_module, "_MOST_UNREAD", 1 << 20)
    with connection(registry, HERE):
        assert received(registry, 1) == [(3, "here")]
        for _ in range(40):
            registry.send(3, Message("values", {}, b"x" * (100 << 10)))
        assert received(registry, 1) == [(3, CUT)]
