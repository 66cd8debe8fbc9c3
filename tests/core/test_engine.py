"""The engine of one rank, with a rank 0 that is played by hand: every message comes when the test wants it."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from coordination import Item

from workbench.collectives import Traffic
from workbench.common.secret.seal import Seal
from workbench.config import Settings
from workbench.core.backend.process_sets import SetTable
from workbench.core.engine import Engine
from workbench.core.handle import Handle
from workbench.core.messages import Announce, Broke, Decision, Event, Kind, Left, Raised, Request, Response
from workbench.core.pending import Entry
from workbench.errors import (
    CollectiveError,
    DeadlineError,
    MismatchError,
    PeerLostError,
    ShutDownError,
    WaitTimeoutError,
)
from workbench.runtime.control.channel import SocketChannel
from workbench.runtime.control.client import ControlClient
from workbench.runtime.control.codec import decode_event, encode_decision
from workbench.runtime.control.connection import Connection
from workbench.runtime.events import Beat, Stack
from workbench.runtime.faults.blocked_threads import BlockedThreads
from workbench.runtime.steady import stack
from workbench.transport.host.single import SingleLink
from workbench.transport.links import link_backend

SECRET = b"the secret of this very job ...."


class Slow:
    """The parts of a world of one whose allreduce can be made to wait, as for a slow peer, and to break."""

    def __init__(self) -> None:
        link = SingleLink()
        link.close = self.close  # type: ignore[method-assign]
        alone = link_backend(link)
        self.backend = replace(alone, collectives=self)  # type: ignore[arg-type]
        self.entered, self.released = threading.Event(), threading.Event()
        self.released.set()
        self.tick: Callable[[], None] = lambda: None
        self.error: BaseException | None = None
        self.closed: list[bool] = []
        self.lengths: list[int] = []

    def allreduce(self, array: np.ndarray, reduction: object, offsets: object = (), source: object = None) -> Traffic:
        """Wait as a backend does: with ticks."""
        self.lengths.append(len(array))
        self.entered.set()
        while not self.released.wait(0.005):
            self.tick()
        if self.error is not None:
            raise self.error
        if source is not None:
            array[...] = np.asarray(source)
        return Traffic()

    def close(self, clean: bool = True) -> None:
        """Remember how it ended."""
        self.closed.append(clean)


def over_tcp() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname(), 5)
        return here, listening.accept()[0]


@dataclass
class Rank0:
    """Rank 0, played by hand, and the engine that it talks to."""

    settings: Settings = field(default_factory=lambda: Settings(heartbeat_s=0.2, fusion_window_s=0.05))
    connect: Callable[[], tuple[socket.socket, socket.socket]] = socket.socketpair
    number: int = 0
    lengths: list[int] = field(default_factory=list)  # of the messages that came

    def __post_init__(self) -> None:
        here, there = self.connect()
        self.connection = Connection(here, 1 << 30)
        self.inbox = deque[Event]()
        self.greeted = False
        self.backend = Slow()
        channel = SocketChannel(1, there, SECRET, self.settings.peer_timeout_s)
        self.control = ControlClient(1, channel, self.settings.heartbeat_s)
        announcer, batching = stack.announcer(1, self.settings), stack.batching(self.settings)
        self.engine = Engine(self.control, SetTable(1, self.backend.backend), self.settings, announcer, batching)
        self.engine.waits = BlockedThreads(1, self.engine.report)
        self.backend.tick = self.engine.tick
        introduced = threading.Thread(target=self.control.introduce, args=(20.0,))
        introduced.start()
        self.hear(Beat)
        self.tell()
        introduced.join()
        self.engine.start()

    def hear(self, kind: type[Event], timeout_s: float = 10.0) -> Event:
        """The next event of a kind from the rank."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._take(0.02)
            while self.inbox:
                event = self.inbox.popleft()
                if isinstance(event, kind):
                    return event
        raise DeadlineError(f"the rank sent no {kind.__name__}")

    def _take(self, timeout_s: float) -> None:
        poller = select.poll()
        poller.register(self.connection, select.POLLIN)
        if self.inbox or not poller.poll(timeout_s * 1000):
            return
        for body in self.connection.receive():
            self.lengths.append(len(body))
            if not (self.greeted and self.connection.private):
                opened = Seal(SECRET, b"up").open(body)
                assert opened is not None
                body = opened[2]
            self.greeted = True
            self.inbox.append(decode_event(body))

    def tell(self, *items: Item, evicted: Sequence[int] = ()) -> None:
        """The next message to the rank."""
        self.number += 1
        body = encode_decision(Decision(self.number, list(items), {}, list(evicted)))
        self.connection.send(body if self.connection.private else Seal(SECRET, b"down").close(0, self.number, body))

    def submit(self, *names: str, length: int = 3, at_once: bool = True) -> list[Handle]:
        """Submit ones under some names."""
        entries = []
        for name in names:
            array = np.ones(length, np.float32)
            entries.append(Entry(request(name, length), array, np.empty_like(array), Handle(name)))
        self.engine.submit(entries, at_once)
        return [entry.handle for entry in entries]

    def close(self) -> None:
        """End the engine, however far it got."""
        self.backend.released.set()
        self.engine.leave(0.0)
        self.engine.join(10)
        self.connection.socket.close()


def request(name: str, length: int = 3) -> Request:
    """An allreduce of a few floats."""
    return Request(name, Kind.ALLREDUCE, "float32", (length,))


def response(name: str, length: int = 3, **fields: object) -> Response:
    """What rank 0 answers to it."""
    return Response(name, Kind.ALLREDUCE, "float32", (length,), **fields)


@pytest.fixture(params=[socket.socketpair, over_tcp], ids=["local", "tcp"])
def connect(request: pytest.FixtureRequest) -> Callable[[], tuple[socket.socket, socket.socket]]:
    """How the rank and rank 0 are connected."""
    return request.param


@pytest.fixture
def rank0(connect: Callable[[], tuple[socket.socket, socket.socket]]) -> Iterator[Rank0]:
    """Rank 0 with an engine that has been introduced and runs."""
    played = Rank0(connect=connect)
    yield played
    played.close()


def test_a_tensor_is_announced_and_answered(rank0: Rank0) -> None:
    """Submitted, announced in full, answered, executed: the handle has the result; the second time the id is enough."""
    (handle,) = rank0.submit("x")
    announce = rank0.hear(Announce)
    assert (announce.rank, announce.items) == (1, (request("x"),))
    rank0.tell(response("x", cache_id=7))
    np.testing.assert_array_equal(handle.wait(10), np.ones(3))
    (handle,) = rank0.submit("x")
    assert rank0.hear(Announce).items == (7,)
    rank0.tell(7)
    np.testing.assert_array_equal(handle.wait(10), np.ones(3))


def test_seen_is_the_number_of_the_last_message(rank0: Rank0) -> None:
    """An announcement says how far the rank has read."""
    (handle,) = rank0.submit("x")
    assert rank0.hear(Announce).seen == 1
    rank0.tell()
    rank0.tell(response("x"))
    handle.wait(10)
    rank0.submit("y")
    assert rank0.hear(Announce).seen == 3


def test_a_rank_does_not_use_an_id_that_it_says_it_has_seen_evicted(rank0: Rank0) -> None:
    """Messages are also read amid a long collective; what was read then is not yet obeyed, and must not count as seen.

    Rank 0 forgets an evicted id when all ranks have seen the eviction. A rank that says so and still announces
    the id breaks rank 0.
    """
    (handle,) = rank0.submit("x")
    rank0.hear(Announce)
    rank0.tell(response("x", cache_id=7))
    handle.wait(10)
    rank0.backend.entered.clear()
    rank0.backend.released.clear()
    (slow,) = rank0.submit("slow")
    rank0.hear(Announce)
    rank0.tell(response("slow", cache_id=8))
    assert rank0.backend.entered.wait(10)
    rank0.tell(response("other", cache_id=9), evicted=[7])
    time.sleep(0.2)  # amid the collective, the tick reads the message
    rank0.submit("x")
    rank0.backend.released.set()
    slow.wait(10)
    announce = rank0.hear(Announce)
    assert announce.seen < rank0.number or announce.items == (request("x"),)


def test_what_was_ready_together_is_reduced_together(rank0: Rank0) -> None:
    """Small tensors of one message share one allreduce; the handles get their own parts."""
    handles = rank0.submit("a", length=2) + rank0.submit("b", length=5)
    for _ in range(2):
        if len(rank0.hear(Announce).items) == 2:
            break
    rank0.tell(response("a", 2), response("b", 5))
    assert [handle.wait(10).size for handle in handles] == [2, 5]
    assert rank0.backend.lengths == [7]


def test_an_announcement_waits_until_somebody_waits() -> None:
    """Neighbours are announced together, when somebody waits for one of them or the window ends, or at once."""
    window_s = 1.0
    played = Rank0(Settings(heartbeat_s=60.0, fusion_window_s=window_s))
    try:
        started = time.monotonic()
        played.submit("lone", at_once=True)
        assert played.hear(Announce).items == (request("lone"),)
        assert time.monotonic() - started < window_s
        started = time.monotonic()
        played.submit("first", at_once=False)
        played.submit("second", at_once=False)
        assert played.hear(Announce).items == (request("first"), request("second"))
        assert time.monotonic() - started >= window_s
        started = time.monotonic()
        played.submit("third", at_once=False)
        (last,) = played.submit("last", at_once=False)
        with pytest.raises(WaitTimeoutError):
            last.wait(timeout_s=0.05)
        assert played.hear(Announce).items == (request("third"), request("last"))
        assert time.monotonic() - started < window_s
    finally:
        played.close()


def test_an_error_ends_only_its_own_handle(rank0: Rank0) -> None:
    """A mismatch raises at its own handle; the others of the message get their results, and the name is free again."""
    bad, good = rank0.submit("bad", "good")
    rank0.hear(Announce)
    rank0.tell(response("bad", error=("MismatchError", "shapes differ")), response("good"))
    with pytest.raises(MismatchError, match="shapes differ"):
        bad.wait(10)
    np.testing.assert_array_equal(good.wait(10), np.ones(3))
    rank0.submit("bad")


def test_a_broken_data_plane_ends_everything(rank0: Rank0) -> None:
    """An unknown exception in a backend ends all handles, is told to rank 0 with its traceback, and refuses more."""
    rank0.backend.error = ZeroDivisionError("in the backend")
    one, other = rank0.submit("one", "other")
    rank0.hear(Announce)
    rank0.tell(response("one"))
    for handle in (one, other):
        with pytest.raises(CollectiveError, match="in the backend"):
            handle.wait(10)
    broke = rank0.hear(Broke)
    assert broke.why.startswith("The data plane broke on rank 1: ")
    assert "ZeroDivisionError: in the backend" in broke.why
    with pytest.raises(CollectiveError, match="in the backend"):
        rank0.submit("late")
    assert rank0.engine.left.wait(10)
    assert rank0.backend.closed == [False]


@pytest.mark.parametrize("error", [PeerLostError("Rank 1 lost rank 3: closed"), ConnectionResetError(104, "reset")])
@pytest.mark.parametrize("dead", [True, False])
def test_rank_0_knows_better_than_a_stream_that_ended(rank0: Rank0, error: Exception, dead: bool) -> None:
    """The rank at its other end may have left because of a third: nothing is said, left or closed before rank 0's word.

    If rank 0 has none, all are told of what happened here, before this rank leaves.
    """
    rank0.backend.error = error
    (handle,) = rank0.submit("one")
    rank0.hear(Announce)
    rank0.tell(response("one"))
    assert rank0.backend.entered.wait(10)
    rank0.hear(Beat)  # it waits for rank 0's word
    if dead:
        assert not handle.poll()
        assert not rank0.backend.closed
        assert not [event for event in rank0.inbox if isinstance(event, (Broke, Left, Raised))]
        rank0.tell(Response("", Kind.SHUTDOWN, error=("PeerLostError", "Rank 2 was lost")))
    with pytest.raises(CollectiveError, match="Rank 2 was lost" if dead else str(error.args[-1])):
        handle.wait(10)
    if not dead:
        assert str(error.args[-1]) in rank0.hear(Broke).why
    assert not rank0.hear(Left).clean


def test_a_lost_rank_breaks_off_what_is_being_executed(rank0: Rank0) -> None:
    """A collective that waits for a dead rank ends as soon as rank 0 says so, with rank 0's words for all handles."""
    rank0.backend.released.clear()
    running, waiting = rank0.submit("running", "waiting")
    rank0.hear(Announce)
    rank0.tell(response("running"))
    assert rank0.backend.entered.wait(10)
    rank0.tell(Response("", Kind.SHUTDOWN, error=("PeerLostError", "Rank 2 was lost")))
    for handle in (running, waiting):
        with pytest.raises(PeerLostError, match="Rank 2 was lost"):
            handle.wait(10)
    assert rank0.engine.left.wait(10)
    assert rank0.backend.closed == [False]


def test_the_end_of_rank_0_is_noticed(rank0: Rank0) -> None:
    """When rank 0 has died, nobody is left to say so: the other ranks find out, and their waits end with an error."""
    (handle,) = rank0.submit("x")
    rank0.hear(Announce)
    rank0.connection.socket.close()
    with pytest.raises(PeerLostError, match="Rank 0 was lost: its connection ended without a word"):
        handle.wait(5.0)
    assert rank0.engine.left.wait(10)
    assert rank0.backend.closed == [False]


def test_the_end_of_rank_0_is_noticed_amid_a_collective(rank0: Rank0) -> None:
    """A rank that executes learns of rank 0's death as well, and breaks off."""
    rank0.backend.released.clear()
    (handle,) = rank0.submit("x")
    rank0.hear(Announce)
    rank0.tell(response("x"))
    assert rank0.backend.entered.wait(10)
    rank0.connection.socket.close()
    with pytest.raises(PeerLostError, match="Rank 0 was lost"):
        handle.wait(5.0)


def test_the_silence_of_rank_0_is_noticed() -> None:
    """A host that lost its power ends no connection: over TCP silence tells of the loss."""
    played = Rank0(Settings(heartbeat_s=0.1, peer_timeout_s=0.5), connect=over_tcp)
    try:
        (handle,) = played.submit("x")
        played.hear(Announce)
        with pytest.raises(PeerLostError, match=r"Rank 0 was lost: no sign of life for 0\.5 s"):
            handle.wait(5.0)
    finally:
        played.close()


def test_a_rank_0_that_shows_signs_of_life_is_not_lost() -> None:
    """Rank 0 may have nothing to say for as long as it likes; its signs of life are empty messages."""
    played = Rank0(Settings(heartbeat_s=0.05, peer_timeout_s=0.5), connect=over_tcp)
    try:
        (handle,) = played.submit("x")
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            played.hear(Beat)
            played.connection.send(b"")
        played.tell(response("x"))
        np.testing.assert_array_equal(handle.wait(10), np.ones(3))
    finally:
        played.close()


def test_a_rank_that_executes_shows_signs_of_life(rank0: Rank0) -> None:
    """Beats go on while the backend waits."""
    rank0.backend.released.clear()
    rank0.submit("x")
    rank0.hear(Announce)
    rank0.tell(response("x"))
    assert rank0.backend.entered.wait(10)
    for _ in range(3):
        rank0.hear(Beat)


def test_leaving_together_is_clean(rank0: Rank0) -> None:
    """The good end: what is in flight gets ShutDownError, the backend may talk once more, ``leave`` says True."""
    (handle,) = rank0.submit("x")
    together: list[bool] = []
    leaver = threading.Thread(target=lambda: together.append(rank0.engine.leave(20.0)))
    leaver.start()
    assert rank0.hear(Left) == Left(1)
    rank0.tell(Response("", Kind.SHUTDOWN))
    leaver.join()
    assert together == [True]
    assert rank0.backend.closed == [True]
    with pytest.raises(ShutDownError):
        handle.wait(10)
    with pytest.raises(ShutDownError):
        rank0.submit("late")


def test_leaving_alone_does_not_wait_for_ever(rank0: Rank0) -> None:
    """When the others do not come, ``leave`` ends after its time and says so, also amid a collective."""
    rank0.backend.released.clear()
    (handle,) = rank0.submit("x")
    rank0.hear(Announce)
    rank0.tell(response("x"))
    assert rank0.backend.entered.wait(10)
    assert rank0.engine.leave(0.2) is False
    assert rank0.backend.closed == [False]
    with pytest.raises(ShutDownError):
        handle.wait(10)


def test_announcements_fit_into_messages_that_rank_0_takes(rank0: Rank0) -> None:
    """Thousands of tensors with long names are announced once each, in messages under rank 0's limit of 4 MiB."""
    names = [f"{i:04}" + "x" * 2000 for i in range(3000)]
    rank0.submit(*names)
    announced: list[str] = []
    while len(announced) < len(names):
        announced += [item.name for item in rank0.hear(Announce).items]
    assert announced == names
    assert 1 << 20 < max(rank0.lengths) <= 4 << 20


def test_where_a_rank_stands_is_answered_and_nothing_else_happens(rank0: Rank0) -> None:
    """Rank 0 asks between two tensors: the rank says where its main thread is, and both are reduced."""
    first, second = rank0.submit("x")[0], rank0.submit("y")[0]
    rank0.tell(response("x"), Response("", Kind.STACKS), response("y"))
    assert "test_engine.py" in rank0.hear(Stack).text
    np.testing.assert_array_equal(first.wait(10), np.ones(3))
    np.testing.assert_array_equal(second.wait(10), np.ones(3))
