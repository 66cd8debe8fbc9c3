"""Messages over a stream socket: each comes whole, once, in order, or the connection has ended."""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hands import framed

from workbench.common.ports import peer
from workbench.runtime.control.connection import Connection

Pair = tuple[Connection, socket.socket]


def tcp() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname(), 5)
        return here, listening.accept()[0]


@pytest.fixture(params=[socket.socketpair, tcp], ids=["local", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A connection, and the plain socket at its other end."""
    here, there = request.param()
    connection = Connection(here, largest=1 << 30)
    there.settimeout(20)
    yield connection, there
    here.close()
    there.close()


def received(connection: Connection, number: int, timeout_s: float = 20.0) -> list[bytes]:
    """The next messages, as many as are asked for, or those that came in time."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    until = time.monotonic() + timeout_s
    messages: list[bytes] = []
    while len(messages) < number and not connection.closed and time.monotonic() < until:
        if poller.poll(100):
            messages += connection.receive()
    return messages


def closed(connection: Connection, timeout_s: float = 10.0) -> bool:
    """Does the connection notice in time that it has ended?"""
    received(connection, 1 << 60, timeout_s)
    return connection.closed


def flushed(connection: Connection, timeout_s: float = 20.0) -> bool:
    """Does all that has waited find room in time?"""
    poller = select.poll()
    poller.register(connection, select.POLLOUT)
    until = time.monotonic() + timeout_s
    while connection.backlog and time.monotonic() < until:
        poller.poll(100)
        connection.flush()
    return not connection.backlog


def read(sock: socket.socket, length: int) -> bytes:
    """So many bytes, or less if there are no more."""
    data = bytearray()
    while len(data) < length and (more := sock.recv(min(1 << 20, length - len(data)))):
        data += more
    return bytes(data)


def test_a_message_is_its_length_and_its_bytes(pair: Pair) -> None:
    """What goes over the wire is four bytes of length, the highest first, and the message: nothing else."""
    connection, there = pair
    connection.send(b"hello")
    connection.send(b"")
    assert read(there, 13) == b"\0\0\0\5hello\0\0\0\0"
    assert not connection.backlog


def test_nothing_to_read_is_no_end(pair: Pair) -> None:
    """Where nothing has come, nothing is returned, at once, and the connection is open."""
    connection, _ = pair
    assert connection.receive() == []
    assert not connection.closed


def test_however_the_bytes_come_the_messages_are_the_same(pair: Pair) -> None:
    """Hundreds of messages of all lengths, in pieces that have nothing to do with them: all, once, in order."""
    connection, there = pair
    dice = random.Random(1)
    messages = [dice.randbytes(dice.choice([0, 1, 3, 4, 5, 100, 3000])) for _ in range(500)]
    data = b"".join(map(framed, messages))

    def send() -> None:
        start = 0
        while start < len(data):
            length = dice.choice([1, 2, 3, 5, 1000, 100_000])
            there.sendall(data[start : start + length])
            start += length

    sender = threading.Thread(target=send)
    sender.start()
    assert received(connection, len(messages)) == messages
    sender.join()


def test_a_message_is_complete_with_its_last_byte(pair: Pair) -> None:
    """Byte by byte: no message before the last one, and then exactly one."""
    connection, there = pair
    *data, last = framed(b"hello")
    for byte in data:
        there.sendall(bytes([byte]))
        assert received(connection, 1, timeout_s=0.0) == connection.receive() == []
    there.sendall(bytes([last]) + framed(b"next")[:3])
    assert received(connection, 1) == [b"hello"]


def test_a_huge_message_waits_for_room(pair: Pair) -> None:
    """50 MB are sent without waiting, go on as there is room, and arrive as they were, with what was said behind."""
    connection, there = pair
    huge = random.Random(2).randbytes(50_000_000)
    connection.send(huge)  # nobody reads: whoever waited here would do so for ever
    connection.send(b"behind")
    assert connection.backlog
    other, got = Connection(there, largest=len(huge)), []
    reader = threading.Thread(target=lambda: got.extend(received(other, 2, timeout_s=40)))
    reader.start()
    assert flushed(connection)
    reader.join()
    assert got == [huge, b"behind"]


def test_both_ends_may_be_full_at_once(pair: Pair) -> None:
    """Two ends that send megabytes to each other before either reads do not wait for each other."""
    connection, there = pair
    ends = [connection, Connection(there, largest=1 << 30)]
    for end in ends:
        end.send(bytes(5_000_000))
    got: list[list[bytes]] = [[], []]
    until = time.monotonic() + 20
    while got != [[bytes(5_000_000)]] * 2 and time.monotonic() < until:
        for end, messages in zip(ends, got, strict=True):
            end.flush()
            messages += end.receive()
    assert got == [[bytes(5_000_000)]] * 2
    assert not any(end.backlog for end in ends)


def test_the_end_comes_after_the_last_message(pair: Pair) -> None:
    """What was sent before the other end closed can be read; then the connection is closed, and stays so."""
    connection, there = pair
    there.sendall(framed(b"one") + framed(b"two") + framed(b"never complete")[:7])
    there.close()
    assert received(connection, 2) == [b"one", b"two"]
    assert closed(connection)
    assert connection.receive() == []
    assert connection.closed


def test_sending_to_nobody_does_no_harm(pair: Pair) -> None:
    """Where the other end is gone, messages are lost without a word, and none of them waits."""
    connection, there = pair
    connection.send(bytes(5_000_000))
    there.close()
    for _ in range(5):
        connection.send(bytes(5_000_000))
        connection.flush()
    assert flushed(connection)
    assert closed(connection)
    connection.close()


@pytest.mark.parametrize("length", [101, 1 << 20, 2**32 - 1])
def test_too_long_a_message_ends_the_connection(pair: Pair, length: int) -> None:
    """Its length alone is enough, and nothing of it is kept; what came before it is handed out."""
    connection, there = pair
    connection.largest = 100
    there.sendall(framed(bytes(100)) + struct.pack(">I", length))
    assert received(connection, 1) == [bytes(100)]
    assert closed(connection)


def test_nobody_makes_us_hold_more_than_the_largest_message(pair: Pair) -> None:
    """However much is sent, what waits to be complete is never more than one message and one read."""
    connection, there = pair
    connection.largest = 1000
    there.sendall(framed(bytes(1000)) * 100 + framed(bytes(1000))[:-1])
    assert len(received(connection, 100)) == 100
    assert received(connection, 1, timeout_s=0.0) == []
    assert len(connection._in) == 1003


def test_finish_delivers_what_waited(pair: Pair) -> None:
    """What had found no room arrives, as long as the other end reads, and then it reads the end."""
    connection, there = pair
    message = random.Random(3).randbytes(5_000_000)
    connection.send(message)
    assert connection.backlog
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read(there, 1 << 30)))
    reader.start()
    connection.finish()
    reader.join()
    assert got == [framed(message)]
    there.sendall(framed(b"answer"))  # the other direction is still open
    assert received(connection, 1) == [b"answer"]


@pytest.mark.parametrize("end", [Connection.finish, Connection.close])
def test_nobody_waits_for_long_for_who_does_not_read(pair: Pair, end: Callable[[Connection], None]) -> None:
    """An end that never reads delays the other's end by a second, not more."""
    connection, _ = pair
    connection.send(bytes(20_000_000))
    started = time.monotonic()
    end(connection)
    assert time.monotonic() - started > 0.5  # and not for ever


def test_close_gives_the_socket_back(pair: Pair) -> None:
    """After close() the other end reads the end, and the file descriptor is gone."""
    connection, there = pair
    connection.send(b"last")
    connection.close()
    assert connection.fileno() == -1
    assert read(there, 100) == framed(b"last")


def test_only_the_machine_s_own_sockets_are_private() -> None:
    """The system vouches for a process of the same user on this machine, and never for what came over TCP."""
    for make, private in ((socket.socketpair, hasattr(socket, "SO_PEERCRED")), (tcp, False)):
        ends = make()
        assert [Connection(end, 100).private for end in ends] == [private] * 2
        for end in ends:
            end.close()


def test_another_user_s_connection_is_not_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the machine's own sockets the user at the other end counts."""
    here, there = socket.socketpair()
    user = peer(here)[1]
    monkeypatch.setattr("os.getuid", lambda: user + 1)
    assert not Connection(here, 100).private
    here.close()
    there.close()
