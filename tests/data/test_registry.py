"""The registry of a data service: who has its key is answered, and nobody else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from attackers import Recorder, cut_off, listener, noises, visit

from workbench.common.secret.listener import MOST
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


def test_strangers_are_not_answered(service: ComputeService, tmp_path: Path) -> None:
    """Without the key, with garbage, and with a recorded question: nothing is decoded, and others are served."""
    (address,) = service.addresses()["lo"]
    assert address[0] == "127.0.0.1"
    for message in noises(tmp_path / "bomb"):
        with visit(address) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(message)
            assert cut_off(stranger)
    recorder = Recorder(address)
    ComputeClient({"lo": [recorder.address]}, KEY).register_dispatcher(1, "grpc://localhost:1")
    with visit(address) as thief:
        thief.sendall(bytes(recorder.said[0]).replace(b"grpc", b"evil"))
        assert cut_off(thief)
    recorder.close()
    with pytest.raises(ConnectionError, match="is not this data service"):
        client(service, b"another key").shutdown()
    assert client(service).wait_for_dispatcher_registration(1, 1) == "grpc://localhost:1"
    assert client(service)._ask("ended") is False
    assert not (tmp_path / "bomb").exists()


def test_strangers_keep_nobody_away(service: ComputeService) -> None:
    """Of many silent connections the oldest are cut off, and not who waits for an answer."""
    waiting = [threading.Thread(target=client(service).wait_for_shutdown) for _ in range(3)]
    for each in waiting:
        each.start()
    (address,) = service.addresses()["lo"]
    silent = [visit(address) for _ in range(MOST + 20)]
    client(service).register_dispatcher(0, "grpc://localhost:1")
    assert cut_off(silent[0])
    client(service).shutdown()
    for each in waiting:
        each.join(30)
    assert not any(each.is_alive() for each in waiting)
    for sock in silent:
        sock.close()


def test_a_service_that_has_ended_is_named(service: ComputeService) -> None:
    """Where nothing listens the text names the config file, and what to do with it."""
    service.shutdown()
    with pytest.raises(
        ConnectionError, match=r"config file old\.json belongs to an earlier one: delete the file, start"
    ):
        ComputeClient(service.addresses(), KEY, file="old.json").shutdown()


def test_another_server_is_not_believed() -> None:
    """What answers without the key is an error, not an address."""
    with (
        listener(lambda guest: guest.sendall(bytes(48))) as address,
        pytest.raises(ConnectionError, match="not this data service"),
    ):
        ComputeClient({"lo": [address]}, KEY).wait_for_dispatcher_registration(0, 1)
