"""The board over TCP, and strangers at its port: refused, while the ranks read and write."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attackers import Address, Recorder, cut_off, listener, no_free_files, noises, trickle, visit

from workbench.common.messages import Message, encode
from workbench.common.secret import handshake
from workbench.common.secret.listener import MOST
from workbench.errors import LaunchError
from workbench.launch.start.starters import free_port
from workbench.transport.bootstrap.tcp_board import TcpBoard

SECRET = b"the job's own secret"


class Job:
    """Rank 0 with its board.

    Attributes:
        address: of the board.
    """

    def __init__(self) -> None:
        self.address: Address = ("127.0.0.1", free_port())
        self.boards = [TcpBoard(*self.address, SECRET, 0, 2, 10.0)]
        self._written = 0

    def join(self, secret: bytes = SECRET, timeout_s: float = 10.0, address: Address | None = None) -> TcpBoard:
        """As rank 1."""
        self.boards.append(TcpBoard(*(address or self.address), secret, 1, 2, timeout_s))
        return self.boards[-1]

    def works(self) -> bool:
        """Rank 0 writes, and a rank that comes now reads it."""
        self._written += 1
        value = os.urandom(1000)
        self.boards[0].write(f"x{self._written}", value)
        return self.join().read(f"x{self._written}") == value

    def close(self) -> None:
        """The board ends with its process; here it has to be told."""
        server = self.boards[0]._server
        assert server
        server.close()
        for board in self.boards:
            board._channel.close()


@pytest.fixture
def job() -> Iterator[Job]:
    """It is closed in the end."""
    made = Job()
    yield made
    made.close()


@pytest.mark.parametrize("i", range(6))
def test_noise_is_cut_off(job: Job, i: int, tmp_path: Path) -> None:
    """Nothing of it is decoded, and nothing is written."""
    with visit(job.address) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(noises(tmp_path / "bomb")[i])
        assert cut_off(stranger)
    assert job.works()
    assert not (tmp_path / "bomb").exists()


def test_who_does_not_know_the_secret_writes_nothing(job: Job) -> None:
    """A command right behind a wrong proof is not obeyed."""
    with visit(job.address) as stranger:
        theirs = encode(Message("write", {"name": "x"}, b"theirs"))
        stranger.sendall(bytes(48) + struct.pack(">I", len(theirs)) + theirs)
        assert cut_off(stranger)
    assert job.boards[0].read("x") is None


def test_a_host_may_be_known_by_its_name_and_have_no_secret_yet() -> None:
    """As under srun; the name may mean loopback on its own host. A taken port is an error that says what to do."""
    port = free_port()
    first, second = (TcpBoard("localhost", port, b"", rank, 2, 10.0) for rank in (0, 1))
    first.write("x", b"value")
    assert second.read("x") == b"value"
    with pytest.raises(LaunchError, match=rf"rank 0 cannot listen at localhost port {port}: .* it gets another port"):
        TcpBoard("localhost", port, b"", 0, 2, 10.0)
    assert first._server
    first._server.close()
    for board in (first, second):
        board._channel.close()


def test_many_strangers_keep_no_rank_away(job: Job) -> None:
    """More silent connections than are held: the oldest makes room."""
    strangers = [visit(job.address) for _ in range(2 * MOST)]
    begun = time.monotonic()
    assert job.works()
    assert time.monotonic() - begun < 5.0  # their patience is ten seconds
    assert cut_off(strangers[0])
    for each in strangers:
        each.close()


def test_a_silent_stranger_is_cut_off_in_time(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it says a byte now and then."""
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.5)
    with visit(job.address) as silent:
        assert cut_off(silent, 5.0)
    with visit(job.address) as slow:
        assert trickle(slow, 0.1, limit_s=5.0) < 4.0


def test_a_moment_without_free_files_does_not_end_it(job: Job) -> None:
    """A rank that comes later is let in."""
    with socket.socket() as stranger:
        with no_free_files():
            stranger.connect(job.address)
            time.sleep(0.2)
        assert job.works()


def test_a_recorded_rank_opens_no_door(job: Job) -> None:
    """What a rank has said, sent again, is refused."""
    recorder = Recorder(job.address)
    job.join(address=recorder.address).write("x", b"first")
    job.boards[0].write("x", b"second")
    with visit(job.address) as thief:
        thief.sendall(bytes(recorder.said[0]))
        assert cut_off(thief)
    assert job.boards[0].read("x") == b"second"
    recorder.close()


def test_another_job_is_refused(job: Job) -> None:
    """A rank with an old secret says so, within its deadline; the board goes on."""
    begun = time.monotonic()
    with pytest.raises(LaunchError, match=r"within 0.5 s: who listens there does not believe this rank.*another job's"):
        job.join(b"of yesterday's job", 0.5)
    assert time.monotonic() - begun < 5.0
    assert job.works()


@pytest.mark.parametrize("says", [b"", bytes(16), bytes(16 + 32), bytes(16) + os.urandom(1 << 16)])
def test_a_stranger_who_listens_is_not_believed(says: bytes) -> None:
    """Where rank 0 should be: silence, half a handshake, and a wrong one; an error at the deadline."""

    def answer(guest: socket.socket) -> None:
        with contextlib.suppress(OSError):
            guest.sendall(says)

    begun = time.monotonic()
    with (
        listener(answer) as address,
        pytest.raises(LaunchError, match=r"rank 1 does not reach rank 0 at .* within 1 s"),
    ):
        TcpBoard(*address, SECRET, 1, 2, 1.0)
    assert time.monotonic() - begun < 5.0


def test_a_rank_that_has_lost_its_mind(job: Job) -> None:
    """Its nonsense ends its own connection; half a value keeps nobody else waiting."""
    for said in (struct.pack(">I", 1 << 31), struct.pack(">I", 1000) + bytes(500)):
        job.join()._channel._socket.sendall(said)
        assert job.works()
    with pytest.raises(LaunchError, match="does not answer any more"):
        job.boards[1].read("x")  # that one had announced two gigabytes


def test_a_rank_0_that_is_gone(job: Job) -> None:
    """An error that names where it was."""
    rank = job.join()
    job.close()
    with pytest.raises(LaunchError, match=r"within 0.5 s: connection refused"):
        TcpBoard(*job.address, SECRET, 1, 2, 0.5)
    assert rank.where == f"127.0.0.1 port {job.address[1]}"
