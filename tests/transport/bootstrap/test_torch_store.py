"""Where rank 0's store listens, and what comes of calls that nobody answers."""

from __future__ import annotations

import socket
from typing import Any

import pytest

pytest.importorskip("torch")

from workbench.errors import LaunchError
from workbench.transport.background import background
from workbench.transport.bootstrap.meeting_point import listen
from workbench.transport.bootstrap.torch_store import StoreBoard, dist, open_store


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", False), ("127.0.0.1", True), ("localhost", True)])
def test_rank_0_listens_where_it_is_looked_for(host: str, local: bool) -> None:
    """At that address, and nowhere else."""
    with listen(host, 0, local) as sock:
        assert sock.getsockname()[0] in ("127.0.0.1", "::1")


def test_an_address_of_another_machine_is_listened_for_everywhere() -> None:
    """A service's address, say: it is not this machine's own, and leads to it nevertheless."""
    with listen("192.0.2.77", 0, False) as sock:
        assert sock.getsockname()[0] == "0.0.0.0"


def test_a_taken_port_is_an_error_on_rank_0() -> None:
    """Whoever holds it, even a store: rank 0 never joins it, unless torchrun's agent does."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = background(lambda: open_store("127.0.0.1", port, 0, 2, 3.0, local=True)).exception(60)
    assert isinstance(error, LaunchError)
    assert f"127.0.0.1:{port}" in str(error)
    assert "another MASTER_PORT" in str(error)


def test_the_port_stays_taken_from_choice_to_use() -> None:
    """Rank 0's store is at work on the very socket that was bound; torch's own groups find it there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = open_store("127.0.0.1", port, 0, 1, 20.0, local=True)
    store.set("a", b"b")
    assert open_store("127.0.0.1", port, 1, 2, 20.0).get("a") == b"b"
    assert open_store("127.0.0.1", port, 0, 1, 20.0).get("a") == b"b"  # this process holds it
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))


class Torn:
    """A store in which a stranger removes each value between the look at whether it is there, and the reading."""

    def __init__(self, store: Any) -> None:
        self._store, self.get, self.set, self.set_timeout = store, store.get, store.set, store.set_timeout

    def check(self, names: list[str]) -> bool:
        """Was it there?"""
        found = bool(self._store.check(names))
        for name in names:
            self._store.delete_key(name)
        return found


def test_a_value_that_is_removed_while_it_is_read_is_none() -> None:
    """Nobody waits for it until the store's own deadline, and the board answers afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = dist.PrefixStore("workbench/0", open_store("127.0.0.1", port, 0, 1, 20.0, local=True))
    torn, whole = StoreBoard(Torn(store), "the board", 10.0), StoreBoard(store, "the board", 10.0)
    whole.write("a", b"value")
    assert torn.read("a") is None
    whole.write("a", b"value")
    assert whole.read("a") == b"value"
