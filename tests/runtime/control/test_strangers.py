"""Whatever strangers and broken ranks send to the control plane, the job's own messages are answered."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest
from hands import HEARTBEAT_S, LINUX, SECRET, ByHand, Job, ask, cut_off, framed

from workbench.common.secret.seal import Seal
from workbench.core.messages import Announce, Kind, Left, Request
from workbench.errors import PeerLostError
from workbench.machine import host_id
from workbench.runtime.control import server
from workbench.runtime.control.addresses import connect
from workbench.runtime.control.codec import encode_event
from workbench.runtime.events import Beat

LONGEST = 64 << 10  # bytes of a stranger's message
MOST = 256  # strangers at a time, besides one per rank


def raw_bytes(job: Job) -> None:
    """Noise, another protocol, half a message, and a closed connection."""
    for noise in (b"\xff" + os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n"):
        stranger = job.visit()
        stranger.sendall(noise)
        assert cut_off(stranger)
    job.visit().sendall(b"\0\0")
    job.visit().sendall(framed(bytes(1000))[:500])
    job.visit().shutdown(socket.SHUT_RDWR)


def random_messages(job: Job) -> None:
    """The right framing with noise in it, one message and many."""
    for length in (0, 1, 15, 16, 27, 28, 29, 1000, LONGEST):
        stranger = job.visit()
        stranger.sendall(framed(os.urandom(length)))
        assert cut_off(stranger)
    stranger = job.visit()
    with contextlib.suppress(OSError):  # cut off amid it
        stranger.sendall(b"".join(framed(os.urandom(40)) for _ in range(500)))
    assert cut_off(stranger)


def wrong_secret(job: Job) -> None:
    """The right format under another secret, for every rank."""
    for rank in range(3):
        hand = ByHand(job, rank, secret=b"another")
        hand.number = 10_000
        hand.send(Announce(rank, (ask("theirs"),)))
        hand.send(Left(rank))
        assert cut_off(hand.connection.socket)


def own_words(job: Job) -> None:
    """What rank 0 said to the ranks, sent back to it."""
    stranger = job.visit()
    stranger.sendall(framed(Seal(SECRET, b"down").close(1, 10_000, encode_event(Left(1)))))
    assert cut_off(stranger)


def unsealed(job: Job) -> None:
    """What a rank says where it is believed, from somebody who has not shown the secret."""
    stranger = job.visit()
    stranger.sendall(framed(encode_event(Announce(1, (ask("theirs"),)))) + framed(encode_event(Left(1))))
    assert cut_off(stranger)


def huge(job: Job) -> None:
    """Messages longer than a stranger's may be, sealed well or not; whoever sends one is cut off before its end."""
    for length in (LONGEST + 1, 50 << 20, 2**32 - 1):
        stranger = job.visit()
        stranger.sendall(length.to_bytes(4, "big"))
        assert cut_off(stranger)
    stranger = job.visit()
    with contextlib.suppress(OSError):
        stranger.sendall(framed(Seal(SECRET, b"up").close(1, 10_000, bytes(LONGEST))))
    assert cut_off(stranger)


def silent(job: Job) -> None:
    """A hundred connections that say nothing."""
    for _ in range(100):
        job.visit()


def too_many(job: Job) -> None:
    """More silent connections than are held: the oldest makes room for the newest."""
    strangers = [job.visit() for _ in range(MOST + 3)]
    assert job.works("meanwhile")
    late = job.visit()
    assert cut_off(strangers[0])
    assert not cut_off(late, timeout_s=0.05)


STRANGERS = [raw_bytes, random_messages, wrong_secret, own_words, unsealed, huge, silent, too_many]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_do_no_harm(job: Job, stranger: Callable[[Job], None]) -> None:
    """During and after what a stranger sends, the job's own announcements are answered, and the stranger's are not."""
    stranger(job)
    assert job.works("during")
    for one in job.strangers:
        one.close()
    assert job.works("after")
    for rank in range(3):
        assert not job.answered(rank, "theirs", timeout_s=0.05)


def test_a_stranger_s_words_do_not_count_half(job: Job) -> None:
    """A message that comes byte by byte does not keep the ranks waiting."""
    stranger = job.visit()
    for i, byte in enumerate(framed(Seal(b"another", b"up").close(1, 10_000, encode_event(Left(1))))):
        stranger.sendall(bytes([byte]))
        if i % 10 == 0:
            assert job.works(f"x{i}")
    assert cut_off(stranger)


class Flood(threading.Thread):
    """A stranger that sends as fast as it is read, and comes again whenever it is cut off.

    Attributes:
        visits: how often it has been cut off.
    """

    def __init__(self, job: Job, noise: bytes) -> None:
        super().__init__(daemon=True)
        self.address, self.noise, self.visits = job.server.address, noise, 0
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        """Until it is over, or for twenty seconds."""
        until = time.monotonic() + 20
        while not self.over.is_set() and time.monotonic() < until:
            with contextlib.suppress(OSError), connect(self.address, 5.0) as sock:
                while not self.over.is_set():
                    sock.sendall(self.noise)
            self.visits += 1


def test_a_flood_of_noise_does_not_drown_the_job(job: Job) -> None:
    """While strangers send as fast as they are read, the job's announcements are answered, not only afterwards."""
    wrong = Seal(b"another", b"up")
    noises = [
        os.urandom(1 << 16),
        b"".join(framed(wrong.close(1, number, encode_event(Left(1)))) for number in range(1000)),
    ]
    floods = [Flood(job, noise) for noise in noises]
    try:
        until = time.monotonic() + 10
        while min(flood.visits for flood in floods) < 10 and time.monotonic() < until:
            assert job.works(f"amid {sum(flood.visits for flood in floods)}")
        before = [flood.visits for flood in floods]
        assert min(before) >= 10
        for i in range(20):
            assert job.works(f"amid the flood {i}")
        until = time.monotonic() + 10
        while any(flood.visits == old for flood, old in zip(floods, before, strict=True)):
            assert time.monotonic() < until, "the flood had ended"
            time.sleep(0.01)
    finally:
        for flood in floods:
            flood.over.set()
        for flood in floods:
            flood.join(10)
    assert not any(flood.is_alive() for flood in floods)


def test_a_stranger_does_not_keep_the_ranks_from_meeting(start: Callable[..., Job], interface: str, near: bool) -> None:
    """Strangers that come before the job's own ranks neither count as ranks nor keep them out."""
    job = start(2, interface, near)
    random_messages(job)
    silent(job)
    hand = ByHand(job, 1, secret=b"another")
    hand.send(Beat(1, host_id(), os.getpid()))
    assert cut_off(hand.connection.socket)
    assert job.server.missing() == [0, 1]
    job.join()
    assert job.works("x")


def test_silent_strangers_are_sent_away(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not shown the secret after a while is cut off, also amid a message; the ranks are not."""
    strangers = [job.visit() for _ in range(3)]
    strangers[1].sendall(b"\0\0")
    assert not cut_off(strangers[0], timeout_s=0.2)  # its patience is ten seconds
    monkeypatch.setattr(server, "_PATIENCE_S", 0.2)
    assert all(map(cut_off, strangers))
    assert job.works("x")


def test_strangers_take_no_rank_s_room(
    start: Callable[..., Job], interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are let in though silent strangers have taken all the room; these are sent away in the end."""
    job = start(2, interface)
    for _ in range(MOST + 2):
        job.visit()
    strangers = list(job.strangers)
    job.join()
    assert job.works("x")
    monkeypatch.setattr(server, "_PATIENCE_S", 0.0)
    assert all(map(cut_off, strangers))


# Connects as often as it is told to, without a word, and says how many of these connections were ended for it.
_ANOTHER_USER = """
import os, socket, sys, time
os.setuid(65534)
visits = []
for _ in range(int(sys.argv[2])):
    visits.append(socket.socket(socket.AF_UNIX))
    while visits[-1].connect_ex("\\0" + sys.argv[1]):
        time.sleep(0.001)
for one in visits:
    one.settimeout(5)
print(sum(one.recv(1) == b"" for one in visits))
"""


@LINUX
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_is_not_listened_to(start: Callable[..., Job]) -> None:
    """Who connects as another user is sent away at once, and takes no room: a rank that is slow to speak stays."""
    job = start(2, "")
    slow = job.visit()
    another = [sys.executable, "-I", "-c", _ANOTHER_USER, job.server.address[1:], str(MOST + 5)]
    child = subprocess.run(another, capture_output=True, text=True, timeout=50)
    assert child.stdout.strip() == str(MOST + 5), child.stderr
    assert not cut_off(slow, timeout_s=0.05)
    job.join()
    assert job.works("x")


# --- what is recorded and sent again ------------------------------------------------------------------


@pytest.mark.parametrize("interface", ["127.0.0.1"], ids=["tcp"])
def test_a_recorded_message_cannot_be_played_back(start: Callable[..., Job], interface: str, near: bool) -> None:
    """The very bytes with which rank 1 announced a tensor, sent again by somebody else, do not announce it again."""
    job = start(2, interface, near)
    job.join(by_hand=1)
    hand = job.ranks[1]
    recorded = hand.up.close(1, hand.number + 1, encode_event(Announce(1, (ask("x"),))))
    hand.send(Announce(1, (ask("x"),)))
    job.ranks[0].send(Announce(0, (ask("x"),)))
    assert job.answered(0, "x")
    assert job.answered(1, "x")
    thief = job.visit()
    thief.sendall(framed(recorded))
    hand.connection.send(recorded)
    job.ranks[0].send(Announce(0, (ask("x"),)))
    assert not job.answered(0, "x", timeout_s=0.3)
    hand.send(Announce(1, (ask("x"),)))
    assert job.answered(0, "x")
    assert job.answered(1, "x")
    assert job.works("after")


def test_a_recorded_greeting_opens_no_door(start: Callable[..., Job], interface: str) -> None:
    """Who sends a rank's first message again is not taken for the rank, and what follows is not believed."""
    job = start(2, interface)
    job.join(by_hand=1)
    greeting = Seal(SECRET, b"up").close(1, 1, encode_event(Beat(1, host_id(), os.getpid())))
    thief = job.visit()
    thief.sendall(framed(greeting) + framed(encode_event(Announce(1, (ask("theirs"),)))))
    job.ranks[0].send(Announce(0, (ask("theirs"),)))
    assert cut_off(thief)
    assert not job.answered(0, "theirs", timeout_s=0.3)
    assert job.works("after")


# --- a rank that has lost its mind --------------------------------------------------------------------


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


def test_a_rank_that_is_believed_speaks_for_itself_only(start: Callable[..., Job], interface: str, near: bool) -> None:
    """Also where a rank's words are not sealed any more, it cannot say anything in another's name."""
    job = start(2, interface, near)
    job.join(by_hand=1)
    job.ranks[1].send(Announce(1, (ask("theirs"),)))
    job.ranks[1].send(Announce(0, (ask("theirs"),)))
    job.ranks[1].send(Left(0))
    assert not job.answered(0, "theirs", timeout_s=0.2)
    assert job.works("after")


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
    b"\1",
    b"\1" + bytes(20) + b"\xff" * 40,
]


@pytest.mark.parametrize("body", NONSENSE, ids=range(len(NONSENSE)))
def test_a_ranks_nonsense_is_dropped(start: Callable[..., Job], interface: str, body: bytes) -> None:
    """A message of the job's own rank that is no event is dropped, and rank 0 goes on serving all."""
    job = start(2, interface)
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
def test_a_ranks_impossible_wish_does_not_end_rank_0(
    start: Callable[..., Job], interface: str, near: bool, item: Request | int
) -> None:
    """A well-formed announcement of something that does not exist harms no other tensor, not even one beside it."""
    job = start(2, interface, near)
    job.join()
    for rank, client in enumerate(job.ranks):
        client.send(Announce(rank, (ask("before"), item, ask("behind"))))
    assert job.answered(0, "behind", timeout_s=3.0)
    assert job.works("after")


def test_a_rank_s_message_has_a_limit_as_well(start: Callable[..., Job], interface: str) -> None:
    """Four MiB are read from a rank and answered; a rank that wants to send more is cut off, and that is a loss."""
    job = start(2, interface)
    job.join(by_hand=1)
    long = "x" * ((4 << 20) - 1000)
    job.ranks[1].send(Announce(1, (ask(long), ask("short"))))
    job.ranks[0].send(Announce(0, (ask("short"),)))
    assert job.answered(0, "short")
    job.ranks[1].connection.socket.sendall(((4 << 20) + 1).to_bytes(4, "big"))
    assert cut_off(job.ranks[1].connection.socket)
    until = time.monotonic() + 10
    while (error := job.ranks[0].fatal_error()) is None and time.monotonic() < until:
        job.ranks[0]._wait(0.02)
    assert isinstance(error, PeerLostError)
    assert "Rank 1 was lost" in str(error)


# --- the end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
def test_nothing_stays_open(start: Callable[..., Job], interface: str, near: bool, together: bool) -> None:
    """After the end of a job the process has as many open files and threads as before, with strangers around or not."""
    process = psutil.Process()
    before = process.num_fds(), threading.active_count()
    job = start(3, interface, near)
    job.join()
    assert job.works("x")
    silent(job)
    for _ in range(3):
        wrong_secret(job)
    for rank, client in enumerate(job.ranks):
        if together or rank == 0:
            client.send(Left(rank))
    while job.ranks:
        job.ranks.pop().close()
    started = time.monotonic()
    job.server.release(together)
    assert time.monotonic() - started < 5.0
    if not together:  # what the others left open is found to be gone
        job.server.join(10)
    assert not job.server.is_alive()
    for stranger in job.strangers:
        stranger.close()
    assert (process.num_fds(), threading.active_count()) == before


def test_a_rank_that_connects_the_others_at_its_leisure_is_no_stranger(
    start: Callable[..., Job], interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has shown the secret, so it is not sent away; it counts as there once it introduces itself."""
    job = start(2, interface)
    hand = ByHand(job, 1)
    hand.send(Beat(1))
    monkeypatch.setattr(server, "_PATIENCE_S", 0.0)
    assert cut_off(job.visit())
    assert len(job.server.sockets()) == 1
    assert job.server.missing() == [0, 1]
