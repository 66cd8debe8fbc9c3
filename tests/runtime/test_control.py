"""The control plane on loopback: the job's own messages arrive, whatever strangers send."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psutil
import pytest
import zmq

from workbench.errors import DeadlineError, PeerLostError
from workbench.runtime.addresses import addresses, reachable
from workbench.runtime.control import ControlClient, ControlServer
from workbench.runtime.coordinator import Coordinator
from workbench.runtime.liveness import host_id
from workbench.runtime.messages import (
    Announce,
    Beat,
    Event,
    Kind,
    Left,
    Outgoing,
    Raised,
    Request,
    decode_responses,
    encode_event,
    encode_responses,
)
from workbench.runtime.seal import Seal

SECRET = b"the secret of this very job ...."
HEARTBEAT_S = 0.05


def ask(name: str) -> Request:
    """A request that needs nothing."""
    return Request(name, Kind.BARRIER)


class ByHand:
    """A rank without a ControlClient: says what it is told to, sealed or not.

    Args:
        job: whose server it talks to.
        rank: who it says it is.
        secret: the job's own, or another.
    """

    def __init__(self, job: Job, rank: int, secret: bytes = SECRET) -> None:
        self.rank, self.up, self.down, self.number = rank, Seal(secret, b"up"), Seal(secret, b"down"), 0
        self.socket = job.dealer()

    def say(self, body: bytes) -> None:
        """Send a sealed message."""
        self.number += 1
        self.socket.send(self.up.close(self.rank, self.number, body))

    def send(self, event: Event) -> None:
        """Send an event."""
        self.say(encode_event(event))

    def receive(self, timeout_s: float) -> list[tuple[list[Outgoing], list[int]]]:
        """The next message of rank 0, if one comes in time."""
        if not self.socket.poll(int(timeout_s * 1000)):
            return []
        opened = self.down.open(self.socket.recv())
        assert opened is not None
        return [decode_responses(opened[2])[1:]]


@dataclass
class Job:
    """A real server, and what was connected to it."""

    server: ControlServer
    context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=zmq.Context)
    ranks: list[ControlClient | ByHand] = field(default_factory=list)
    strangers: list[socket.socket | zmq.Socket[bytes]] = field(default_factory=list)

    def dealer(self) -> zmq.Socket[bytes]:
        """A socket of the right kind, connected to the server."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(self.server.address)
        self.strangers.append(dealer)
        return dealer

    def tcp(self) -> socket.socket:
        """A plain connection to the server's port."""
        plain = socket.create_connection(("127.0.0.1", self.server.port), 5)
        self.strangers.append(plain)
        return plain

    def client(self, rank: int) -> ControlClient:
        """A rank's own end."""
        return ControlClient(rank, self.server.address, SECRET, HEARTBEAT_S, self.context)

    def join(self, by_hand: int = 0) -> None:
        """All ranks introduce themselves; the last ``by_hand`` of them are made by hand."""
        n = len(self.server.missing())
        clients = [self.client(rank) for rank in range(n - by_hand)]
        hands = [ByHand(self, rank) for rank in range(n - by_hand, n)]
        threads = [threading.Thread(target=client.introduce, args=(20.0,)) for client in clients]
        for thread in threads:
            thread.start()
        for hand in hands:
            hand.send(Beat(hand.rank, host_id(), os.getpid()))
        for thread in threads:
            thread.join()
        self.ranks += [*clients, *hands]
        assert self.server.missing() == []

    def answered(self, rank: int, name: str, timeout_s: float = 10.0) -> bool:
        """Does an answer to ``name`` come to a rank?"""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.server.is_alive():
            for items, *_ in self.ranks[rank].receive(0.05):
                if any(not isinstance(item, int) and item[0].name == name for item in items):
                    return True
        return False

    def works(self, name: str) -> bool:
        """Do all ranks get an answer to a name that all announce?"""
        for rank, client in enumerate(self.ranks):
            client.send(Announce(rank, (ask(name),)))
        return all(self.answered(rank, name) for rank in range(len(self.ranks)))

    def close(self) -> None:
        """End everything."""
        self.server.stop.set()
        for rank in self.ranks:
            if isinstance(rank, ControlClient):
                rank.close()
        for stranger in self.strangers:
            stranger.close()
        self.context.destroy(linger=0)  # also what a failed test left open
        self.server.join(10)
        self.server.context.destroy(linger=0)  # its socket is still open if its thread broke


@pytest.fixture
def start() -> Iterator[Callable[..., Job]]:
    """Starts servers that are ended after the test."""
    jobs = []

    def make(size: int, **options: float) -> Job:
        server = ControlServer(Coordinator(size, grace_s=0.1), SECRET, heartbeat_s=HEARTBEAT_S, **options)
        server.start()
        jobs.append(Job(server))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture
def job(start: Callable[..., Job]) -> Job:
    """A job of three ranks that have met."""
    job = start(3)
    job.join()
    return job


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
            for items, *_ in client.receive(0.05):
                order += [response.name for response, _ in items]
        orders.append(order)
    assert sorted(orders[0]) == sorted(names)
    assert orders[0] == orders[1] == orders[2]


def test_who_does_not_come_is_named(start: Callable[..., Job]) -> None:
    """Without all ranks init() ends at its deadline, and rank 0 says who is missing."""
    job = start(3)
    clients = [job.client(0), job.client(2)]
    job.ranks += clients
    clients[1].send(Beat(2, host_id(), os.getpid()))
    with pytest.raises(DeadlineError, match=r"rank 1 did not come within 0\.3 s"):
        clients[0].introduce(0.3, job.server.missing)
    with pytest.raises(DeadlineError, match="rank 0 did not answer"):
        clients[1].introduce(0.1)


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


def test_a_rank_that_waits_shows_signs_of_life(start: Callable[..., Job]) -> None:
    """A rank that only pumps stays alive for a server that counts silence, one that does nothing is lost by it."""
    job = start(2, peer_timeout_s=0.5)
    clients = [job.client(rank) for rank in range(2)]
    job.ranks += clients
    for client in clients:  # from "other hosts", so that only signs of life count
        client.send(Beat(client.rank, "elsewhere", 1))
    deadline = time.monotonic() + 10
    while clients[0].hopeless() is None and time.monotonic() < deadline:
        clients[0].pump()
        time.sleep(0.02)
    error = clients[0].hopeless()
    assert isinstance(error, PeerLostError)
    assert "Rank 1 was lost: no sign of life for 0.5 s" in str(error)


def test_a_killed_process_ends_the_job(start: Callable[..., Job]) -> None:
    """Soon after a rank's process is killed every other rank reads a PeerLostError that names it."""
    job = start(2, peer_timeout_s=60.0)
    child = subprocess.Popen(["sleep", "60"])
    hand, client = ByHand(job, 1), job.client(0)
    job.ranks += [client, hand]
    hand.send(Beat(1, host_id(), child.pid))
    client.introduce(20.0)
    child.kill()
    deadline = time.monotonic() + 10
    while client.hopeless() is None and time.monotonic() < deadline:
        client._wait(0.05)
        client.pump()
    child.wait()
    assert isinstance(client.hopeless(), PeerLostError)
    assert "Rank 1 was lost" in str(client.hopeless())


def test_a_failed_cell_is_answered_without_another_event(job: Job) -> None:
    """The grace of a failed cell runs out by itself: the error comes though nobody says anything more."""
    job.ranks[0].send(Announce(0, (ask("x"),)))
    job.ranks[1].send(Raised(1, "ValueError: cell", final=False))
    assert job.answered(0, "x")


# --- strangers ----------------------------------------------------------------------------------------


def raw_bytes(job: Job) -> None:
    """Noise, half a greeting, and a closed connection."""
    job.tcp().sendall(os.urandom(4096))
    job.tcp().sendall(b"\xff\0\0\0\0\0\0\0\1\x7f\3")
    job.tcp().sendall(b"GET / HTTP/1.1\r\n\r\n")
    job.tcp().shutdown(socket.SHUT_RDWR)


def random_frames(job: Job) -> None:
    """The right protocol, with noise in it, in one frame and in many."""
    dealer = job.dealer()
    for length in (0, 1, 15, 16, 27, 28, 29, 1000):
        dealer.send(os.urandom(length))
    dealer.send_multipart([b""])
    dealer.send_multipart([b"", b"", b""])
    dealer.send_multipart([os.urandom(40) for _ in range(50)])


def wrong_secret(job: Job) -> None:
    """The right format under another secret, for every rank."""
    for rank in range(3):
        hand = ByHand(job, rank, secret=b"another")
        hand.number = 10_000
        hand.send(Announce(rank, (ask("theirs"),)))
        hand.send(Left(rank))


def own_words(job: Job) -> None:
    """What rank 0 said to the ranks, sent back to it."""
    job.dealer().send(Seal(SECRET, b"down").close(1, 10_000, encode_event(Left(1))))


def huge(job: Job) -> None:
    """A message of 50 MB; whoever sends it is cut off."""
    dealer = job.dealer()
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    dealer.send(bytes(50 << 20))
    cut_off = monitor.poll(10_000)
    dealer.disable_monitor()
    monitor.close()
    assert cut_off


def silent(job: Job) -> None:
    """A hundred connections that say nothing."""
    for _ in range(100):
        job.tcp()


STRANGERS = [raw_bytes, random_frames, wrong_secret, own_words, huge, silent]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_do_no_harm(job: Job, stranger: Callable[[Job], None]) -> None:
    """During and after what a stranger sends, the job's own announcements are answered, and the stranger's are not."""
    stranger(job)
    assert job.works("during")
    time.sleep(0.1)
    assert job.works("after")
    for rank in range(3):
        assert not job.answered(rank, "theirs", timeout_s=0.05)


class Flooded:
    """A server's socket on which there is always something: the job's messages in between, noise otherwise."""

    def __init__(self, inner: zmq.Socket[bytes], flooding: threading.Event) -> None:
        self.inner, self.flooding = inner, flooding

    def poll(self, timeout_ms: int) -> int:
        """There is always something while the flood goes on."""
        return 1 if self.flooding.is_set() else self.inner.poll(timeout_ms)

    def recv_multipart(self) -> list[bytes]:
        """The job's own messages get their turn."""
        return self.inner.recv_multipart() if self.inner.poll(0) else [b"stranger", b"noise"]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def test_a_flood_of_noise_does_not_drown_the_job(job: Job) -> None:
    """While strangers send faster than rank 0 reads, the job's announcements are answered, and not only afterwards."""
    flooding = threading.Event()
    job.server._socket = Flooded(job.server._socket, flooding)
    flooding.set()
    try:
        assert job.works("amid the flood")
    finally:
        flooding.clear()


def test_a_stranger_does_not_keep_the_ranks_from_meeting(start: Callable[..., Job]) -> None:
    """Strangers that come before the job's own ranks neither count as ranks nor keep them out."""
    job = start(2)
    random_frames(job)
    hand = ByHand(job, 1, secret=b"another")
    hand.send(Beat(1, host_id(), os.getpid()))
    time.sleep(0.1)
    assert job.server.missing() == [0, 1]
    job.join()
    assert job.works("x")


def test_a_recorded_message_cannot_be_played_back(start: Callable[..., Job]) -> None:
    """The very bytes with which rank 1 announced a tensor, sent again by somebody else, do not announce it again."""
    job = start(2)
    job.join(by_hand=1)
    hand = job.ranks[1]
    recorded = hand.up.close(1, hand.number + 1, encode_event(Announce(1, (ask("x"),))))
    hand.send(Announce(1, (ask("x"),)))
    job.ranks[0].send(Announce(0, (ask("x"),)))
    assert job.answered(0, "x")
    thief = job.dealer()
    thief.send(recorded)
    hand.socket.send(recorded)
    job.ranks[0].send(Announce(0, (ask("x"),)))
    assert not job.answered(0, "x", timeout_s=0.3)
    hand.send(Announce(1, (ask("x"),)))
    assert job.answered(0, "x")
    assert job.works("after")


def test_a_rank_speaks_for_itself_only(job: Job) -> None:
    """A rank number that does not exist, and one rank's message under another's number, are dropped."""
    for rank in (3, 7, 2**32 - 1):
        nobody = ByHand(job, rank)
        nobody.send(Announce(rank, (ask("theirs"),)))
        nobody.send(Left(rank))
    liar = ByHand(job, 1)
    liar.number = 10_000
    liar.send(Announce(0, (ask("theirs"),)))
    liar.send(Left(2))
    assert job.works("after")
    for rank in range(3):
        assert not job.answered(rank, "theirs", timeout_s=0.05)


NONSENSE = [
    b"",
    b"\xff\xfe nonsense",
    b"[]",
    b"{}",
    b'["Announce",1]',
    b'["Announce",1,[["x"]],0]',
    b'["Announce",1,[1.5],0]',
    b'["Announce",1,[],Infinity]',
    b'["Announce",1,[["x","barrier","",[1e999],"sum",-1,"cpu",1,1,0,[],"",0,false]],0]',
    b'["Lost",1,"because I say so"]',
    b'["Raised",1,17,true]',
    b'["Beat",1,"%s","me"]' % host_id().encode(),
    b"[" * 10_000,
]


@pytest.mark.parametrize("body", NONSENSE, ids=range(len(NONSENSE)))
def test_a_ranks_nonsense_is_dropped(start: Callable[..., Job], body: bytes) -> None:
    """A message of the job's own rank that is no event is dropped, and rank 0 goes on serving all."""
    job = start(2)
    job.join(by_hand=1)
    job.ranks[1].say(body)
    assert job.works("after")
    time.sleep(3 * HEARTBEAT_S)  # rank 0 looks at the processes of the ranks
    assert job.works("later")


@pytest.mark.parametrize(
    "item",
    [4711, Request("x", Kind.BARRIER, process_set=99), Request("x", Kind.ALLGATHER, "int8", ())],
    ids=["a cache id that was never given", "a process set that does not exist", "an allgather of a scalar"],
)
def test_a_ranks_impossible_wish_does_not_end_rank_0(start: Callable[..., Job], item: Request | int) -> None:
    """A well-formed announcement of something that does not exist harms no other tensor, not even one beside it."""
    job = start(2)
    job.join()
    for rank, client in enumerate(job.ranks):
        client.send(Announce(rank, (ask("before"), item, ask("behind"))))
    assert job.answered(0, "behind", timeout_s=3.0)
    assert job.works("after")


def test_a_long_traceback_arrives(start: Callable[..., Job]) -> None:
    """A rank whose exception has a text of megabytes (a printed tensor) still tells the others that it raised."""
    job = start(2)
    job.join()
    job.ranks[0].send(Announce(0, (ask("x"),)))
    job.ranks[1].send(Raised(1, "ValueError: " + "0.123, " * 1_000_000))
    assert job.answered(0, "x", timeout_s=5.0)


def test_a_rank_believes_rank_0_only(start: Callable[..., Job]) -> None:
    """What is not sealed with the secret, is turned round, or comes a second time, is dropped by a rank as well."""
    job = start(1)
    router = job.context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    job.strangers.append(router)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    client = ControlClient(1, f"tcp://127.0.0.1:{port}", SECRET, 60.0, job.context)
    job.ranks.append(client)
    client.send(Beat(1))
    assert router.poll(10_000)
    name = router.recv_multipart()[0]
    body = encode_responses(1, [7], [])
    for message in (
        b"",
        os.urandom(60),
        Seal(b"another", b"down").close(0, 1, body),
        Seal(SECRET, b"up").close(0, 1, body),
        Seal(SECRET, b"down").close(0, 5, encode_responses(5, [7], [])),
        Seal(SECRET, b"down").close(0, 5, encode_responses(5, [7], [])),
        Seal(SECRET, b"down").close(0, 4, encode_responses(4, [8], [])),
        Seal(SECRET, b"down").close(0, 6, encode_responses(6, [9], [])),
    ):
        router.send_multipart([name, message])
    got: list[Outgoing] = []
    deadline = time.monotonic() + 10
    while 9 not in got and time.monotonic() < deadline:
        got += [item for items, *_ in client.receive(0.1) for item in items]
    assert got == [7, 9]


# --- where it listens ---------------------------------------------------------------------------------


def test_it_listens_on_loopback_only(job: Job) -> None:
    """The only listening socket of the control plane is bound to 127.0.0.1."""
    listening = [
        connection.laddr
        for connection in psutil.Process().net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == job.server.port
    ]
    assert [address.ip for address in listening] == ["127.0.0.1"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's own sockets")
def test_on_one_machine_no_port_is_open() -> None:
    """Without an interface ranks meet over the machine's own sockets: nothing listens that a network could reach."""
    before = {connection.laddr for connection in psutil.Process().net_connections(kind="inet")}
    server = ControlServer(Coordinator(2), SECRET, "", HEARTBEAT_S)
    server.start()
    ways = enumerate([server.inproc, server.address])
    clients = [ControlClient(rank, way, SECRET, HEARTBEAT_S, server.context) for rank, way in ways]
    try:
        helper = threading.Thread(target=clients[0].introduce, args=[20.0])
        helper.start()
        clients[1].introduce(20.0)
        helper.join(20.0)
        assert not helper.is_alive()
        assert {connection.laddr for connection in psutil.Process().net_connections(kind="inet")} == before
    finally:
        for client in clients:
            client.close()
        server.release(together=True)


def test_no_other_address_of_this_host_answers(job: Job) -> None:
    """Whoever tries the host's other addresses is not let in; loopback is the last resort of who looks for a way."""
    assert addresses()[-1] == "127.0.0.1"
    for host in addresses()[:-1]:
        with socket.socket() as visitor:
            visitor.settimeout(1)
            assert visitor.connect_ex((host, job.server.port)) != 0
    assert reachable(["127.0.0.2", "127.0.0.1"], job.server.port, timeout_s=1) == "127.0.0.1"


def test_the_first_address_that_answers_is_taken(job: Job) -> None:
    """Of several addresses the first that answers; if none answers, the last."""
    port = job.server.port
    assert reachable(["127.0.0.1", "127.0.0.9"], port) == "127.0.0.1"
    assert reachable(["127.0.0.8", "127.0.0.9"], port, timeout_s=1) == "127.0.0.9"


def test_what_is_on_the_wire_can_be_read() -> None:
    """A captured event is JSON behind the seal, as the module says: a student can read it."""
    message = Seal(SECRET, b"up").close(1, 1, encode_event(Left(1)))
    assert json.loads(message[28:]) == ["Left", 1, True]
