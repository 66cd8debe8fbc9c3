"""The control plane over real sockets: the job's own messages arrive, and whoever is gone is missed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from coordination import Item
from hands import LINUX, SECRET, ByHand, Job, ask
from interrupted import interrupts

from workbench.common.secret.seal import Seal
from workbench.core.messages import Announce, Decision, Kind, Left, Raised, Request, Response
from workbench.errors import DeadlineError, PeerLostError
from workbench.machine import host_id
from workbench.runtime.control import server
from workbench.runtime.control.addresses import addresses, connect, reachable
from workbench.runtime.control.channel import SocketChannel
from workbench.runtime.control.client import ControlClient
from workbench.runtime.control.codec import encode_decision, encode_event
from workbench.runtime.control.connection import Connection
from workbench.runtime.events import Beat


def next_message(client: ControlClient, timeout_s: float = 10.0) -> Decision:
    """The next message in which there is something to do."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for message in client.receive(0.05):
            if message:
                return message
    raise DeadlineError("nothing came")


def end(client: ControlClient, timeout_s: float = 10.0) -> str:
    """The text of the PeerLostError by which a rank learns of the job's end; empty if it learns of none in time."""
    deadline = time.monotonic() + timeout_s
    while (error := client.fatal_error()) is None and time.monotonic() < deadline:
        client._wait(0.02)
    assert error is None or isinstance(error, PeerLostError)
    return str(error or "")


# --- the job's own messages ---------------------------------------------------------------------------


def test_an_announcement_comes_back_to_all(job: Job) -> None:
    """What all ranks announce is answered on every rank; what one announces is not."""
    assert job.works("x")
    job.ranks[1].send(Announce(1, (ask("lone"),)))
    assert job.works("y")
    assert not job.answered(0, "lone", timeout_s=0.2)


def test_messages_come_in_order(job: Job) -> None:
    """Every rank reads the same responses in the same order, however the announcements arrive."""
    names = [f"t{i}" for i in range(100)]
    for rank, client in enumerate(job.ranks):
        for name in names if rank % 2 else reversed(names):
            client.send(Announce(rank, (ask(name),)))
    orders: list[list[str]] = []
    for client in job.ranks:
        order: list[str] = []
        deadline = time.monotonic() + 20
        while len(order) < len(names) and time.monotonic() < deadline:
            for items in (each.items for each in client.receive(0.05)):
                order += [response.name for response in items]
        orders.append(order)
    assert sorted(orders[0]) == sorted(names)
    assert orders[0] == orders[1] == orders[2]


def test_values_ride_to_all(job: Job) -> None:
    """Small values go up with the announcement, and every rank gets the result; also once the name is but an id."""
    values = [os.urandom(64) for _ in job.ranks]
    item: Request | int = Request("gathered", Kind.ALLGATHER, "uint8", (64,))
    for _ in range(2):
        for client, value in zip(job.ranks, values, strict=True):
            client.send(Announce(client.rank, (item,), client.seen, {0: value}))
        messages = [next_message(client) for client in job.ranks]
        assert [decision.results for decision in messages] == [{0: b"".join(values)}] * 3
        ids = [each if isinstance(each, int) else each.cache_id for decision in messages for each in decision.items]
        assert ids == [ids[0]] * 3
        item = ids[0]
    assert messages[-1].items == [item], "the last time the id was all that was sent"


def test_messages_of_any_size_arrive(job: Job) -> None:
    """Thousands of names at once are answered on every rank, though no message up may have more than 4 MiB."""
    requests = [ask(f"{i:04}" + "x" * 2000) for i in range(3000)]
    got: list[set[str]] = [set() for _ in job.ranks]

    def take_part(rank: int) -> None:
        client = job.ranks[rank]
        client.send(Announce(rank, tuple(requests)))
        deadline = time.monotonic() + 30
        while len(got[rank]) < len(requests) and time.monotonic() < deadline:
            got[rank] |= {response.name for each in client.receive(0.05) for response in each.items}

    threads = [threading.Thread(target=take_part, args=[rank]) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [{request.name for request in requests}] * 3


def test_who_does_not_come_is_named(start: Callable[..., Job], interface: str, near: bool) -> None:
    """Without all ranks init() ends at its deadline, and rank 0 says who is missing."""
    job = start(3, interface, near)
    clients = [job.client(0), job.client(2)]
    job.ranks += clients
    clients[1].send(Beat(2, host_id(), os.getpid()))
    with pytest.raises(DeadlineError, match=r"rank 1 did not come within 0\.3 s"):
        clients[0].introduce(0.3, job.server.missing)
    with pytest.raises(DeadlineError, match="rank 0 did not answer"):
        clients[1].introduce(0.1)


def test_where_nobody_listens_the_address_is_named() -> None:
    """A rank that does not get through to rank 0 says where it tried, and what can be done."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(DeadlineError, match=rf"at 127\.0\.0\.1:{port}.*WORKBENCH_CONTROL_ADDRESS"):
        connect(("127.0.0.1", port), 5.0)
    with pytest.raises(DeadlineError, match="on this machine"):
        connect("\0workbench-nobody", 5.0)


@contextlib.contextmanager
def full_queue(room: int) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """A socket of this machine whose queue of connections that nobody has accepted yet is full; and who is in it."""
    with contextlib.ExitStack() as close:
        listening = close.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(f"\0workbench-test-{secrets.token_hex(8)}")
        listening.listen(room)
        queued = [close.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(room + 1)]
        for one in queued:
            one.connect(listening.getsockname())
        yield listening, queued


@LINUX
def test_a_rank_waits_for_room_in_a_full_queue() -> None:
    """Where more ranks come at once than rank 0 has room for, each gets its turn as soon as there is room."""
    with full_queue(room=2) as (listening, queued), ThreadPoolExecutor(20) as ranks:
        address = listening.getsockname().decode()
        found = [ranks.submit(connect, address, 20.0) for _ in range(20)]
        assert concurrent.futures.wait(found, timeout=0.3, return_when="FIRST_EXCEPTION").done == set()
        for _ in range(len(queued) + len(found)):
            listening.accept()[0].close()
        for each in found:
            each.result(20).close()


@LINUX
def test_the_wait_for_room_has_an_end() -> None:
    """Rank 0 that accepts nobody until the deadline does not answer, and that is said."""
    told = pytest.raises(DeadlineError, match=r"does not answer on this machine: .*full for 0\.3 s")
    with full_queue(room=0) as (listening, _), told:
        connect(listening.getsockname().decode(), 0.3)


def test_wake_ends_a_wait(job: Job) -> None:
    """A wake-up from another thread ends ``receive`` long before its time; many of them do not fill anything up."""
    client = job.ranks[0]
    client._heartbeat_s = 60.0
    client.send(Beat(0))
    for _ in range(100_000):
        client.wake()
    while client._wake_read.fileno() in dict(client._poller.poll(0)):
        client.receive(0)
    timer = threading.Timer(0.1, client.wake)
    started = time.monotonic()
    timer.start()
    client.receive(30.0)
    assert time.monotonic() - started < 10
    timer.join()


def test_an_interrupt_in_a_wake_up_costs_no_later_one() -> None:
    """Wherever Ctrl-C hits a wake-up, the next one ends a wait."""
    ours, theirs = socket.socketpair()
    client = ControlClient(1, SocketChannel(1, ours, SECRET), 60.0)
    try:
        for _ in interrupts(client.wake):
            client.wake()
            assert client._wake_read.fileno() in dict(client._poller.poll(0))
            client.receive(0)
    finally:
        theirs.close()
        client.close()


def test_a_failed_cell_is_answered_without_another_event(job: Job) -> None:
    """The grace of a failed cell runs out by itself: the error comes though nobody says anything more."""
    job.ranks[0].send(Announce(0, (ask("x"),)))
    job.ranks[1].send(Raised(1, "ValueError: cell", final=False))
    assert job.answered(0, "x")


def test_a_failed_cell_of_rank_0_is_answered_soon(start: Callable[..., Job], interface: str) -> None:
    """Also where rank 0's own call is what leaves a name undecided, the server does not sleep until its next beat."""
    job = start(2, interface, heartbeat_s=60.0)
    job.join()
    job.ranks[1].send(Announce(1, (ask("x"),)))
    job.ranks[0].send(Raised(0, "ValueError: cell", final=False))
    assert job.answered(1, "x", timeout_s=5.0)


@pytest.mark.parametrize("by_hand", [0, 1])
def test_a_long_traceback_arrives(start: Callable[..., Job], interface: str, by_hand: int) -> None:
    """A rank whose exception has a text of megabytes (a printed tensor) still tells the others that it raised."""
    job = start(2, interface)
    job.join(by_hand)
    job.ranks[0].send(Announce(0, (ask("x"),)))
    job.ranks[1].send(Raised(1, "ValueError: " + "0.123, " * 1_000_000))
    assert job.answered(0, "x", timeout_s=5.0)


def test_last_words_reach_all(job: Job) -> None:
    """When all have left, every rank is told so, and only then its connection ends: nobody is taken for lost."""
    for rank, client in enumerate(job.ranks):
        client.send(Left(rank))
    job.server.join(10)
    assert not job.server.is_alive()
    for client in job.ranks:
        (item,) = next_message(client).items
        assert (item.kind, item.error) == (Kind.SHUTDOWN, ())


# --- who is gone --------------------------------------------------------------------------------------


def test_a_rank_that_waits_shows_signs_of_life(start: Callable[..., Job], interface: str, near: bool) -> None:
    """A rank that only pumps stays alive for a server that counts silence, one that does nothing is lost by it."""
    job = start(2, interface, near, peer_timeout_s=0.5)
    clients = [job.client(rank) for rank in range(2)]
    job.ranks += clients
    for client in clients:  # from "other hosts", so that only signs of life count
        client.send(Beat(client.rank, "elsewhere", 1))
    assert "Rank 1 was lost: no sign of life for 0.5 s" in end(clients[0])


def test_a_killed_process_ends_the_job(start: Callable[..., Job], interface: str, near: bool) -> None:
    """Soon after a rank's process is killed every other rank reads a PeerLostError that names it."""
    job = start(2, interface, near, peer_timeout_s=60.0)
    child = subprocess.Popen(["sleep", "60"])
    hand, client = ByHand(job, 1), job.client(0)
    job.ranks += [client, hand]
    hand.send(Beat(1, host_id(), child.pid))
    client.introduce(20.0)
    child.kill()
    assert "Rank 1 was lost" in end(client)
    child.wait()


@pytest.mark.parametrize(("host", "at_least_s"), [(host_id(), 0.9), ("elsewhere", 0.0)], ids=["here", "elsewhere"])
def test_the_end_of_a_connection_is_the_end_of_its_rank(
    start: Callable[..., Job], interface: str, host: str, at_least_s: float
) -> None:
    """A connection that ends without good-bye tells of a loss: at once, or where the process is still there, soon."""
    job = start(2, interface, peer_timeout_s=60.0, heartbeat_s=30.0)
    hand, client = ByHand(job, 1), job.client(0)
    job.ranks.append(client)
    hand.send(Beat(1, host, os.getpid()))
    client.introduce(20.0)
    started = time.monotonic()
    hand.connection.close()
    assert "Rank 1 was lost: its connection to rank 0 ended without a word" in end(client)
    assert at_least_s <= time.monotonic() - started < 5.0


def test_a_rank_that_does_not_read_is_lost(
    start: Callable[..., Job], interface: str, near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rank 0 keeps for a rank that takes none of it has a bound; then the rank is lost, and the reason is told."""
    monkeypatch.setattr(server, "MOST_UNREAD", 4 << 20)
    job = start(2, interface, near, peer_timeout_s=3600.0)
    job.join(by_hand=1)
    client, deaf = job.ranks
    answers: list[Response] = []
    for number in range(100):
        names = [ask(f"{number}.{i}" + "x" * 2000) for i in range(500)]
        deaf.send(Announce(1, tuple(names)))
        client.send(Announce(client.rank, tuple(names), client.seen))
        until, answers = time.monotonic() + 10, []
        while not answers:
            assert time.monotonic() < until
            answers = [response for each in client.receive(0.05) for response in each.items]
        if answers[-1].kind is Kind.SHUTDOWN:
            break
    assert answers[-1].error[0] == "PeerLostError"
    assert "Rank 1 was lost: it does not read: " in answers[-1].error[1]
    assert number >= 4


@LINUX
def test_a_rank_that_is_stopped_is_named_at_once_and_lost_in_the_end(
    start: Callable[..., Job], interface: str, near: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The stall report says that its process is stopped; when it was silent for too long, it is lost for that.

    At level DEBUG each name's story comes with the report.
    """
    job = start(2, interface, near, stall_warning_s=0.2, peer_timeout_s=3.0)
    child = subprocess.Popen(["sleep", "60"])
    try:
        hand, client = ByHand(job, 1), job.client(0)
        job.ranks.append(client)
        hand.send(Beat(1, host_id(), child.pid))
        client.introduce(20.0)
        child.send_signal(signal.SIGSTOP)
        with caplog.at_level(logging.DEBUG, "workbench"):
            client.send(Announce(client.rank, (ask("x"),), client.seen))
            why = end(client, 20.0)
        assert "s for [1]: rank 0 " in next(line for line in caplog.messages if line.startswith("'x' has waited since"))
        assert f"Rank 1 was lost: its process {child.pid} has been stopped for 3 s (Ctrl-Z, SIGSTOP)" in why
        assert f"Rank 1 does not answer: its process {child.pid} is stopped (Ctrl-Z, SIGSTOP)" in caplog.text
    finally:
        child.kill()
        child.wait()


def test_who_says_good_bye_may_go(start: Callable[..., Job], interface: str) -> None:
    """A connection that ends after an engine has ended is no loss: others that do not need the rank go on."""
    job = start(2, interface, peer_timeout_s=60.0)
    hand, client = ByHand(job, 1), job.client(0)
    job.ranks.append(client)
    hand.send(Beat(1, "elsewhere", 1))
    client.introduce(20.0)
    hand.send(Left(1))
    hand.send(Left(1, clean=False))
    hand.connection.close()
    assert end(client, timeout_s=0.5) == ""
    client.send(Announce(0, (ask("x"),)))
    assert job.answered(0, "x")


def test_the_end_of_the_server_is_noticed(job: Job) -> None:
    """A server that goes away without a word leaves every rank with a PeerLostError that says so, and soon."""
    job.server.stop.set()
    for client in job.ranks:
        assert end(client).startswith("Rank 0 was lost: ")


@pytest.mark.parametrize("full", [False, True], ids=["room", "no room"])
def test_what_a_rank_says_to_a_server_that_ends_does_no_harm(full: bool) -> None:
    """A server that ends still reads for a while: what finds no room then is lost, and the rank learns why as ever."""
    ours, theirs = socket.socketpair()
    client = ControlClient(1, SocketChannel(1, ours, SECRET), 60.0)
    try:
        if full:
            client.send(Announce(client.rank, (ask("x" * 1_000_000),), client.seen))
        theirs.shutdown(socket.SHUT_WR)
        assert end(client).startswith("Rank 0 was lost: ")
        client.send(Announce(client.rank, (ask("x" * 1_000_000),), client.seen))
        assert end(client).startswith("Rank 0 was lost: ")
    finally:
        theirs.close()
        client.close()


# --- a rank and what it believes ----------------------------------------------------------------------


def test_a_rank_believes_rank_0_only() -> None:
    """What is not sealed with the secret, is turned round, or comes a second time, is dropped by a rank as well."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = ControlClient(1, SocketChannel(1, connect(listening.getsockname(), 5.0), SECRET), 60.0)
        rank0 = Connection(listening.accept()[0], 1 << 20)
    body = encode_decision(Decision(1, [7]))
    for message in (
        b"",
        os.urandom(60),
        body,
        Seal(b"another", b"down").close(0, 1, body),
        Seal(SECRET, b"up").close(0, 1, body),
        Seal(SECRET, b"down").close(0, 5, encode_decision(Decision(5, [7]))),
        Seal(SECRET, b"down").close(0, 5, encode_decision(Decision(5, [7]))),
        Seal(SECRET, b"down").close(0, 4, encode_decision(Decision(4, [8]))),
        Seal(SECRET, b"down").close(0, 6, encode_decision(Decision(6, [9]))),
    ):
        rank0.send(message)
    got: list[Item] = []
    deadline = time.monotonic() + 10
    while 9 not in got and time.monotonic() < deadline:
        got += [item for each in client.receive(0.1) for item in each.items]
    rank0.close()
    client.close()
    assert got == [7, 9]


# --- where it listens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("interface", ["127.0.0.1"], ids=["tcp"])
def test_it_listens_on_loopback_only(job: Job) -> None:
    """The only listening socket of the control plane is bound to 127.0.0.1."""
    listening = [
        connection.laddr
        for connection in psutil.Process().net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == job.server.port
    ]
    assert [address.ip for address in listening] == ["127.0.0.1"]


@LINUX
def test_on_one_machine_no_port_is_open(start: Callable[..., Job], near: bool) -> None:
    """Without an interface ranks meet over the machine's own sockets: nothing listens that a network could reach."""

    def listening() -> set[object]:
        found = psutil.Process().net_connections(kind="inet")
        return {connection.laddr for connection in found if connection.status == psutil.CONN_LISTEN}

    before = listening()
    job = start(3, "", near)
    job.join()
    assert job.works("x")
    assert (job.server.port, listening() - before) == (0, set())


def test_no_other_address_of_this_host_answers(start: Callable[..., Job]) -> None:
    """Whoever tries the host's other addresses is not let in; loopback is the last resort of who looks for a way."""
    job = start(1)
    assert addresses()[-1] == "127.0.0.1"
    for host in addresses()[:-1]:
        with socket.socket() as visitor:
            visitor.settimeout(1)
            assert visitor.connect_ex((host, job.server.port)) != 0
    assert reachable(["127.0.0.2", "127.0.0.1"], job.server.port, timeout_s=1) == "127.0.0.1"


def test_the_first_address_that_answers_is_taken(start: Callable[..., Job]) -> None:
    """Of several addresses the first that answers; if none answers, the last."""
    port = start(1).server.port
    assert reachable(["127.0.0.1", "127.0.0.9"], port) == "127.0.0.1"
    assert reachable(["127.0.0.8", "127.0.0.9"], port, timeout_s=1) == "127.0.0.9"


def test_what_is_on_the_wire_can_be_read() -> None:
    """A captured event is JSON behind the seal, as the module says: a student can read it."""
    message = Seal(SECRET, b"up").close(1, 1, encode_event(Left(1)))
    assert json.loads(message[28:]) == ["Left", 1, True]
