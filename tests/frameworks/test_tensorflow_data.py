"""What the data service does where the system or an old file stands in its way."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.tensorflow.data import servers
from workbench.tensorflow.data.compute_service import TfDataServiceConfig


class Refusing(socket.socket):
    """As Linux before 5.7 for users: no socket is bound to a device."""

    def setsockopt(self, *args: Any) -> None:
        """Refuse that option."""
        if args[1] == socket.SO_BINDTODEVICE:
            raise PermissionError(1, "Operation not permitted")
        super().setsockopt(*args)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On such a system."""
    monkeypatch.setattr(socket, "socket", Refusing)
    servers._can_bind.cache_clear()
    yield
    servers._can_bind.cache_clear()


@pytest.mark.usefixtures("refused")
def test_a_system_that_binds_no_socket_to_a_device() -> None:
    """The dispatcher runs all the same, and the warning says that everyone reaches it."""
    server, address = servers.dispatcher("localhost")
    try:
        assert address.startswith("grpc://localhost:")
        assert servers.who_reaches("localhost") == "everyone who reaches its ports"
    finally:
        servers.stop(server)


def test_the_config_file_ends_with_its_service(tmp_path: Path) -> None:
    """For its owner alone; deleted, but not one that another service has written in its place."""
    file = str(tmp_path / "compute.json")
    old = TfDataServiceConfig(1, 1, "compute", {"lo": [("127.0.0.1", 1)]}, b"old")
    new = TfDataServiceConfig(1, 1, "compute", {"lo": [("127.0.0.1", 1)]}, b"new")
    new.write(file)
    assert Path(file).stat().st_mode & 0o777 == 0o600, "for its owner alone"
    old.remove(file)
    with pytest.raises(ConnectionError, match=r"compute\.json belongs to an earlier one"):
        TfDataServiceConfig.read(file).compute_client().shutdown()
    new.remove(file)
    new.remove(file)
    assert not Path(file).exists()
