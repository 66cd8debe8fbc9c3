"""Is each of Gloo's ranks who it says it is?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from workbench.errors import LaunchError, PeerLostError
from workbench.transport.bootstrap.rendezvous import Session
from workbench.transport.host.gloo import GlooLink, connected


class Dictionary:
    """A board in memory."""

    where = "the board"

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.read, self.write = self.found.get, self.found.__setitem__


def links(n: int, use: Callable[[GlooLink], Any]) -> list[Any]:
    """What ``use`` returns or raises on each of n ranks, which are threads."""
    board, hellos = Dictionary(), [{"node": "here", "net": ""}] * n

    def run(rank: int) -> Any:
        session = Session(board, b"key of the session", "session", hellos, 20.0)
        link = connected(session, rank, n, 20.0, lambda: None)
        try:
            return use(link)
        except LaunchError as error:
            return str(error)
        finally:
            link.close()

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(run, range(n)))


def test_ranks_that_are_who_they_say_are_connected() -> None:
    """All of them verify each other, and messages arrive afterwards."""

    def use(link: GlooLink) -> list[int]:
        link.verify(b"key", 20.0, lambda: None)
        found = np.zeros(2, np.uint8)
        after, before = (link.rank + 1) % link.size, (link.rank - 1) % link.size
        link.sendrecv(np.full(2, link.rank, np.uint8), after, found, before)
        return found.tolist()

    assert links(3, use) == [[2, 2], [0, 0], [1, 1]]


def test_a_stranger_in_a_rank_s_place_is_found_out() -> None:
    """Whoever does not know the key is not believed, by any rank that it is connected to."""

    def use(link: GlooLink) -> str:
        link.verify(b"another" if link.rank == 1 else b"key", 3.0, lambda: None)
        return ""

    found = links(3, use)
    assert all("somebody else has connected instead" in each for each in found), found


def test_a_rank_that_does_not_answer_is_named_with_the_deadline() -> None:
    """Of two ranks there is one only that can be meant."""

    def use(link: GlooLink) -> str:
        if link.rank == 0:
            link.verify(b"key", 0.5, lambda: None)
        return ""

    text = links(2, use)[0]
    assert "init(): rank 1 is not at the other end of its connection to rank 0" in text
    assert "did not answer within 0.5 s (WORKBENCH_INIT_TIMEOUT_S)" in text


def test_a_wait_that_is_broken_off_leaves_no_thread_in_the_library() -> None:
    """Both ranks wait for each other and are told that a third was lost: the process could not end otherwise."""

    def ended() -> None:
        raise PeerLostError("Rank 2 was lost.")

    def use(link: GlooLink) -> None:
        link.verify(b"key", 20.0, lambda: None)
        link.tick = ended
        with pytest.raises(PeerLostError):
            link.sendrecv(None, 1 - link.rank, np.zeros(1000), 1 - link.rank)
        link.close(clean=False)

    links(2, use)
    assert not [thread for thread in threading.enumerate() if thread.name == "workbench-gloo"]
