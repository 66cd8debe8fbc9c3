"""The registry of a data service: who has its key is answered, and nobody else."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from workbench.data import registry
from workbench.data.registry import ComputeClient, ComputeService, TimeoutException

KEY = b"k" * 32


@pytest.fixture
def service() -> Iterator[ComputeService]:
    """Two dispatchers with two workers each."""
    made = ComputeService(2, 2, KEY)
    yield made
    made.shutdown()


def client(service: ComputeService, key: bytes = KEY) -> ComputeClient:
    """One who asks."""
    return ComputeClient(service.addresses(), key)


def test_who_waits_is_told(service: ComputeService) -> None:
    """Questions that come first are answered when dispatchers and workers have come, each dispatcher by itself."""
    found: list[str] = []

    def wait() -> None:
        found.append(client(service).wait_for_dispatcher_registration(1, timeout=30))
        client(service).wait_for_dispatcher_worker_registration(1, timeout=30)
        found.append("workers")

    waiting = threading.Thread(target=wait)
    waiting.start()
    client(service).register_dispatcher(1, "grpc://localhost:1")
    client(service).register_dispatcher(1, "grpc://localhost:1")
    for worker in (2, 3):
        client(service).register_worker_for_dispatcher(1, worker)
    waiting.join(30)
    assert found == ["grpc://localhost:1", "workers"]
    with pytest.raises(TimeoutException, match="dispatcher 0 to register"):
        client(service).wait_for_dispatcher_registration(0, timeout=0.01)
    client(service).register_worker_for_dispatcher(0, 0)
    with pytest.raises(TimeoutException, match="dispatcher 0 to register: 1 of 2 did"):
        client(service).wait_for_dispatcher_worker_registration(0, timeout=0.01)


def test_mistakes_are_named(service: ComputeService) -> None:
    """A number that there is not, another address for the same dispatcher, and nothing to serve."""
    with pytest.raises(IndexError, match="numbered from 0 to 1"):
        client(service).register_dispatcher(2, "grpc://localhost:1")
    client(service).register_dispatcher(0, "grpc://localhost:1")
    with pytest.raises(ValueError, match="registered already, as grpc://localhost:1, not grpc://localhost:2"):
        client(service).register_dispatcher(0, "grpc://localhost:2")
    with pytest.raises(ValueError, match="At least one"):
        ComputeService(0, 1, KEY)


def test_shutdown_reaches_all_who_wait(service: ComputeService) -> None:
    """One client ends it for all."""
    waiting = [threading.Thread(target=client(service).wait_for_shutdown) for _ in range(3)]
    for each in waiting:
        each.start()
    client(service).shutdown()
    for each in waiting:
        each.join(30)
    assert not any(each.is_alive() for each in waiting)


def test_strangers_are_not_answered(service: ComputeService) -> None:
    """Without the key, with garbage, and with a recorded message: nothing is decoded, and others are served."""
    (address,) = service.addresses()["lo"]
    assert address[0] == "127.0.0.1"
    question = json.dumps({"what": "end"}).encode()
    recorded = registry._seals(KEY)[0].close(0, 0, b"n" * 16 + question)
    for message in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, recorded, b"\x80\x04."):
        with socket.create_connection(address, 10) as sock:
            sock.recv(16)
            registry._write(sock, message)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(100) == b""
    with pytest.raises(ConnectionError):
        client(service, b"another key").shutdown()
    client(service).register_dispatcher(0, "grpc://localhost:1")
    assert client(service).wait_for_dispatcher_registration(0, 1) == "grpc://localhost:1"
    assert client(service)._ask("ended") is False


def test_strangers_are_few_at_a_time(service: ComputeService) -> None:
    """Silent connections take 64 threads and no more, whatever waits for an answer; later ones are served again."""
    waiting = [threading.Thread(target=client(service).wait_for_shutdown) for _ in range(3)]
    for each in waiting:
        each.start()
    (address,) = service.addresses()["lo"]
    silent = [socket.create_connection(address, 10) for _ in range(registry._STRANGERS + 20)]
    greeted = 0
    for sock in silent:
        with contextlib.suppress(ConnectionError):
            greeted += bool(sock.recv(16))
    assert registry._STRANGERS - 3 <= greeted <= registry._STRANGERS + 3
    for sock in silent:
        sock.close()
    client(service).shutdown()
    for each in waiting:
        each.join(30)
    assert not any(each.is_alive() for each in waiting)


def test_a_question_has_one_deadline(service: ComputeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends it byte by byte is not waited for beyond it."""
    monkeypatch.setattr(registry, "_STRANGER_S", 0.5)
    (address,) = service.addresses()["lo"]
    until = time.monotonic() + 20

    def dribble(sock: socket.socket) -> None:
        while time.monotonic() < until:
            sock.sendall(b"x")
            time.sleep(0.1)

    with socket.create_connection(address, 10) as sock:
        sock.recv(16)
        sock.sendall(registry._LENGTH.pack(registry._LARGEST))
        with pytest.raises(ConnectionError):
            dribble(sock)


def test_a_service_that_has_ended_is_named(service: ComputeService) -> None:
    """Where nothing listens the text names the config file, and what to do with it."""
    service.shutdown()
    with pytest.raises(
        ConnectionError, match=r"config file old\.json belongs to an earlier one: delete the file, start"
    ):
        ComputeClient(service.addresses(), KEY, file="old.json").shutdown()


def test_another_server_is_not_believed() -> None:
    """What answers without the key is an error, not an address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.sendall(b"n" * 16)
                registry._read(sock)
                registry._write(sock, b"x" * 60)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionError, match="not this data service"):
            ComputeClient({"lo": [server.getsockname()]}, KEY).wait_for_dispatcher_registration(0, 1)
        thread.join(10)
