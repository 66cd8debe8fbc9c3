"""The data plane over TCP, and strangers at its port: refused, and the job's sums are right all the same."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from attackers import Address, Recorder, cut_off, listener, no_free_files, noises, trickle, visit

from workbench.common.secret.listener import MOST
from workbench.errors import CollectiveError, DeadlineError, PeerLostError
from workbench.transport.host import sockets
from workbench.transport.host.sockets import SocketLink

SECRET = b"the job's own secret"


class Pair:
    """Two ranks in this process.

    Attributes:
        links: theirs.
        places: where they listen.
    """

    def __init__(self, secrets: tuple[bytes, bytes] = (SECRET, SECRET), timeout_s: float = 10.0) -> None:
        self.links = [SocketLink(rank, 2, secrets[rank], timeout_s) for rank in (0, 1)]
        self.addresses: list[Address] = [link.listen("127.0.0.1") for link in self.links]
        for link in self.links:
            link.addresses = list(self.addresses)
        self._pool = ThreadPoolExecutor(2)

    def both(self, call: Callable[[SocketLink], None]) -> None:
        """On both ranks at once; the first error of one is raised."""
        for done in [self._pool.submit(call, link) for link in self.links]:
            done.result(30.0)

    def works(self, count: int = 100_000) -> bool:
        """Each gets what the other sends, to the byte."""

        def swap(link: SocketLink) -> None:
            other = 1 - link.rank
            send = np.arange(count, dtype=np.int64) * (link.rank + 1)
            recv = np.zeros(count, np.int64)
            link.sendrecv(send, other, recv, other)
            np.testing.assert_array_equal(recv, np.arange(count, dtype=np.int64) * (other + 1))

        self.both(swap)
        return True

    def close(self) -> None:
        """End both."""
        for link in self.links:
            link.close()
        self._pool.shutdown()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """No stream leads from one to the other yet."""
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize("i", range(6))
def test_noise_is_cut_off(pair: Pair, i: int, tmp_path: Path) -> None:
    """Before and after the ranks have met; nothing of it is decoded."""
    for _ in range(2):
        stranger = visit(pair.addresses[1])
        with contextlib.suppress(OSError):  # cut off amid it
            stranger.sendall(noises(tmp_path / "bomb")[i])
        assert cut_off(stranger)
        assert pair.works()
        stranger.close()
    assert not (tmp_path / "bomb").exists()


def test_half_a_handshake_keeps_nobody_waiting(pair: Pair) -> None:
    """Nor one that ends amid it."""
    half = visit(pair.addresses[1])
    half.sendall(bytes(30))
    ended = visit(pair.addresses[1])
    ended.sendall(bytes(30))
    ended.close()
    assert pair.works()
    half.close()


def test_a_silent_stranger_is_cut_off_in_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it says a byte now and then."""
    monkeypatch.setattr(sockets, "HANDSHAKE_S", 0.5)
    with visit(pair.addresses[1]) as silent:
        assert cut_off(silent, 5.0)
    with visit(pair.addresses[1]) as slow:
        assert trickle(slow, 0.1, limit_s=5.0) < 4.0


def test_many_strangers_keep_no_rank_away(pair: Pair) -> None:
    """More silent connections than are held: the oldest makes room, and open files do not run out."""
    before = len(os.listdir("/proc/self/fd"))
    strangers = [visit(pair.addresses[1]) for _ in range(2 * MOST)]
    begun = time.monotonic()
    assert pair.works()
    assert time.monotonic() - begun < 5.0  # their patience is ten seconds
    assert cut_off(strangers[0])
    held = len(os.listdir("/proc/self/fd")) - before - len(strangers)
    assert held <= MOST + 2 + 8, "the strangers' ends, and the streams of both ranks"
    for each in strangers:
        each.close()


def test_a_moment_without_free_files_does_not_end_it(pair: Pair) -> None:
    """A rank that comes later is let in."""
    with socket.socket() as stranger:
        with no_free_files():
            stranger.connect(pair.addresses[1])
            time.sleep(0.2)
        assert pair.works()


def test_a_recorded_handshake_opens_no_door(pair: Pair) -> None:
    """The very bytes with which rank 0 was let in, sent again, are refused; what follows them is no data."""
    recorder = Recorder(pair.addresses[1])
    pair.links[0].addresses[1] = recorder.address
    assert pair.works(10)
    (said,) = recorder.said
    assert len(said) > 52
    with visit(pair.addresses[1]) as thief:
        thief.sendall(bytes(said))
        assert cut_off(thief)
    assert pair.works()
    recorder.close()


def test_a_second_stream_from_a_rank_is_refused(pair: Pair) -> None:
    """The first one stays: nobody can put himself between who knows the secret and its data."""
    assert pair.works()
    twin = SocketLink(0, 2, SECRET, 1.0)
    twin.addresses = list(pair.addresses)
    with pytest.raises(PeerLostError):
        twin.sendrecv(np.ones(1), 1, None, 0)
    assert pair.works()
    twin.close()


def test_another_job_is_refused() -> None:
    """One with an old secret, at the right address: an error on the rank that connects, at once, with the address."""
    pair = Pair((b"of yesterday's job", SECRET), timeout_s=1.0)
    with pytest.raises(PeerLostError, match=r"lost rank 1 at 127.0.0.1 in the data plane: no stream.*another job's"):
        pair.links[0].sendrecv(np.ones(1), 1, None, 1)
    with pytest.raises(DeadlineError, match=r"rank 1 has waited for rank 0 at 127\.0\.0\.1 for 1 s"):
        pair.links[1].sendrecv(None, 0, np.ones(1), 0)
    pair.close()


@pytest.mark.parametrize("says", [b"", bytes(16), bytes(16 + 32), bytes(16) + os.urandom(1 << 16)])
def test_a_stranger_who_listens_gets_no_data(says: bytes, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a rank should be: silence, half a handshake, and a wrong one."""
    monkeypatch.setattr(sockets, "HANDSHAKE_S", 0.5)

    def answer(guest: socket.socket) -> None:
        with contextlib.suppress(OSError):
            guest.sendall(says)

    begun = time.monotonic()
    with listener(answer) as address:
        pair.links[0].addresses[1] = address
        with pytest.raises(PeerLostError, match="no stream to port"):
            pair.links[0].sendrecv(np.ones(1), 1, None, 1)
    assert time.monotonic() - begun < 5.0


def test_a_peer_that_reads_nothing() -> None:
    """The sender gives up at its deadline."""
    pair = Pair(timeout_s=0.5)
    with pytest.raises(DeadlineError, match=r"WORKBENCH_DATA_TIMEOUT_S"):
        pair.links[0].sendrecv(np.zeros(1 << 24), 1, None, 1)
    pair.close()


def test_a_peer_that_ends_amid_a_tensor(pair: Pair) -> None:
    """Half a tensor is an error, and no result."""
    assert pair.works()
    sent = threading.Event()

    def run(link: SocketLink) -> None:
        if link.rank == 0:
            link.sendrecv(np.ones(1000), 1, None, 1)
            sent.set()
            link.close()
        else:
            link.sendrecv(None, 0, np.zeros(2000), 0)

    with pytest.raises(CollectiveError, match=r"lost rank 0 at 127\.0\.0\.1 in the data plane"):
        pair.both(run)
    assert sent.is_set()


def test_nothing_is_open_after_the_end() -> None:
    """Neither the port nor a stranger's connection, nor a thread."""
    pair = Pair()
    strangers = [visit(pair.addresses[1]) for _ in range(5)]
    pair.close()
    assert all(map(cut_off, strangers))
    with pytest.raises(OSError):  # noqa: PT011 - refused or reset
        visit(pair.addresses[1])
    until = time.monotonic() + 5.0
    while any(thread.name.startswith("workbench-tcp") for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)
    for each in strangers:
        each.close()


def test_a_transfer_that_never_rests_ticks(pair: Pair) -> None:
    """The engine is called amid it, or its rank would be taken for lost after some gigabytes."""
    pair.works()
    ticks = [0, 0]

    def count(rank: int) -> None:
        ticks[rank] += 1

    for link in pair.links:
        link.tick = lambda rank=link.rank: count(rank)  # type: ignore[misc]
    begun, most = time.monotonic(), 0.0
    while time.monotonic() < begun + 1.0:
        each = time.monotonic()
        pair.works(10_000_000)
        most = max(most, time.monotonic() - each)
    assert most > 0.1, "one transfer was to take some ticks"
    assert min(ticks) > 2
