"""Who is alive: by the process on this host, by the signs of life on others."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hands import LINUX

from workbench.machine import has_ended, host_id
from workbench.runtime.control.liveness import Rank0Liveness, RankLiveness
from workbench.runtime.events import Beat

FOREVER = 1e9


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, and is gone after the test."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def gone(watch: RankLiveness, now: float, timeout_s: float = 10.0) -> list[int]:
    """Ranks that are found lost, at the latest after a while: a signal needs a moment to kill."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = [lost.rank for lost in watch.lost(now)]
        if found:
            return found
        time.sleep(0.01)
    return []


def test_a_silent_process_of_this_host_is_alive(child: subprocess.Popen[bytes]) -> None:
    """As long as its process is there, a rank of this host is not lost, however long it says nothing."""
    watch = RankLiveness(peer_timeout_s=1.0)
    watch.register(Beat(1, host_id(), child.pid), now=0.0)
    assert watch.lost(FOREVER) == []


@pytest.mark.parametrize("reaped", [False, True], ids=["zombie", "reaped"])
def test_a_killed_process_is_lost(child: subprocess.Popen[bytes], reaped: bool) -> None:
    """A process killed with -9 is lost at once and reported once, also before its parent has asked for it."""
    watch = RankLiveness(peer_timeout_s=FOREVER)
    watch.register(Beat(1, host_id(), child.pid), now=0.0)
    watch.register(Beat(0, host_id(), os.getpid()), now=0.0)
    child.send_signal(signal.SIGKILL)
    if reaped:
        child.wait()
    assert gone(watch, now=0.1) == [1]
    assert watch.lost(0.2) == []
    assert has_ended(child.pid)


def test_the_reason_names_the_process(child: subprocess.Popen[bytes]) -> None:
    """Whoever reads of the loss finds the process id to look for in the logs."""
    watch = RankLiveness(peer_timeout_s=1.0)
    watch.register(Beat(3, host_id(), child.pid), now=0.0)
    child.kill()
    child.wait()
    (lost,) = watch.lost(0.0)
    assert lost.rank == 3
    assert str(child.pid) in lost.why


def test_a_rank_on_another_host_is_lost_by_its_silence() -> None:
    """Of another host only signs of life are known: silence longer than the timeout is a loss, reported once.

    The process id is this process's own: on another host it means nothing.
    """
    watch = RankLiveness(peer_timeout_s=30.0)
    watch.register(Beat(1, "elsewhere", os.getpid()), now=0.0)
    assert watch.lost(29.9) == []
    watch.sign_of_life(1, 20.0)
    assert watch.lost(49.9) == []
    (lost,) = watch.lost(50.1)
    assert lost.rank == 1
    assert "30 s" in lost.why
    assert watch.lost(99.0) == []


def test_who_said_good_bye_is_not_lost(child: subprocess.Popen[bytes]) -> None:
    """A rank that left may end or fall silent."""
    watch = RankLiveness(peer_timeout_s=1.0)
    watch.register(Beat(1, host_id(), child.pid), now=0.0)
    watch.register(Beat(2, "elsewhere", 1), now=0.0)
    watch.forget(1)
    watch.forget(2)
    child.kill()
    child.wait()
    watch.sign_of_life(2, 0.0)
    assert watch.lost(FOREVER) == []


CUT_OFF = "its connection to rank 0 ended without a word"


def test_a_connection_from_another_host_that_ends_is_a_loss() -> None:
    """Without good-bye before it, the end is a loss at once, reported once."""
    watch = RankLiveness(peer_timeout_s=FOREVER)
    watch.register(Beat(1, "elsewhere", os.getpid()), now=0.0)
    assert not watch.has_suspects
    watch.cut_off(1, 10.0)
    assert watch.has_suspects
    assert [(lost.rank, lost.why) for lost in watch.lost(10.0)] == [(1, CUT_OFF)]
    assert not watch.has_suspects
    assert watch.lost(FOREVER) == []


def test_a_process_whose_connection_ended_gets_a_second() -> None:
    """A process of this host that is there still may be about to end, which says more; then it is lost all the same."""
    watch = RankLiveness(peer_timeout_s=FOREVER)
    watch.register(Beat(1, host_id(), os.getpid()), now=0.0)
    watch.cut_off(1, 10.0)
    assert watch.lost(10.9) == []
    assert watch.has_suspects
    assert [(lost.rank, lost.why) for lost in watch.lost(11.1)] == [(1, CUT_OFF)]
    assert not watch.has_suspects
    assert watch.lost(FOREVER) == []


def test_a_dead_process_is_the_better_reason(child: subprocess.Popen[bytes]) -> None:
    """Where the connection ended because the process did, the loss is told at once, and the process is named."""
    watch = RankLiveness(peer_timeout_s=FOREVER)
    watch.register(Beat(1, host_id(), child.pid), now=0.0)
    child.kill()
    child.wait()
    watch.cut_off(1, 10.0)
    (lost,) = watch.lost(10.0)
    assert str(child.pid) in lost.why
    assert not watch.has_suspects


def test_a_connection_that_ends_after_good_bye_is_no_loss() -> None:
    """Who has left, or was never introduced, may close the connection; nobody is suspect then."""
    watch = RankLiveness(peer_timeout_s=1.0)
    for rank, host in enumerate((host_id(), "elsewhere")):
        watch.register(Beat(rank, host, os.getpid()), now=0.0)
        watch.forget(rank)
        watch.cut_off(rank, 0.0)
    watch.cut_off(5, 0.0)
    assert not watch.has_suspects
    assert watch.lost(FOREVER) == []


def test_good_bye_may_come_after_the_end() -> None:
    """A good-bye that is read after the connection's end takes the suspicion away."""
    watch = RankLiveness(peer_timeout_s=FOREVER)
    watch.register(Beat(1, host_id(), os.getpid()), now=0.0)
    watch.cut_off(1, 0.0)
    watch.forget(1)
    assert not watch.has_suspects
    assert watch.lost(100.0) == []


@LINUX
def test_a_process_that_is_stopped_is_lost_by_its_silence(child: subprocess.Popen[bytes]) -> None:
    """Stopped and silent for longer than the timeout counts as lost, once; for less, it may go on."""
    watch = RankLiveness(peer_timeout_s=30.0)
    watch.register(Beat(1, host_id(), child.pid), now=0.0)
    child.send_signal(signal.SIGSTOP)
    until = time.monotonic() + 10
    while not watch.stopped() and time.monotonic() < until:
        time.sleep(0.001)
    assert f"process {child.pid} is stopped" in watch.stopped()[1]
    assert watch.lost(29.9) == []
    (lost,) = watch.lost(30.1)
    assert (lost.rank, lost.why) == (1, f"its process {child.pid} has been stopped for 30 s (Ctrl-Z, SIGSTOP)")
    assert watch.lost(FOREVER) == []


def test_who_was_stopped_itself_has_heard_nothing() -> None:
    """After rank 0 was stopped for long (Ctrl-Z of the whole job) the others' silence counts from its end."""
    watch = RankLiveness(peer_timeout_s=30.0)
    watch.register(Beat(1, "elsewhere", 1), now=0.0)
    watch.slept(2.0, now=20.0)
    assert [lost.rank for lost in watch.lost(30.1)] == [1]
    watch.register(Beat(1, "elsewhere", 1), now=0.0)
    watch.slept(100.0, now=101.0)
    assert watch.lost(130.9) == []
    assert [lost.rank for lost in watch.lost(131.1)] == [1]


def test_who_is_given_up_is_lost(child: subprocess.Popen[bytes]) -> None:
    """What rank 0 has found out about a rank is the reason, unless its process has ended."""
    watch = RankLiveness(peer_timeout_s=30.0)
    for rank, pid in enumerate((os.getpid(), child.pid)):
        watch.register(Beat(rank, host_id(), pid), now=0.0)
    child.kill()
    child.wait()
    for rank in (0, 1, 5):
        watch.give_up(rank, "it does not read")
    assert watch.has_suspects
    first, second = watch.lost(0.0)
    assert (first.rank, first.why) == (0, "it does not read")
    assert (second.rank, str(child.pid) in second.why) == (1, True)
    assert not watch.has_suspects


def test_a_stranger_is_not_watched() -> None:
    """A sign of life of a rank that never introduced itself starts no watch."""
    watch = RankLiveness(peer_timeout_s=1.0)
    watch.sign_of_life(5, 0.0)
    assert watch.lost(FOREVER) == []


def test_this_process_is_alive() -> None:
    """The process that asks is alive, and it is on its own host."""
    assert not has_ended(os.getpid())
    assert host_id() == host_id() != ""


# --- a rank's watch over rank 0 -----------------------------------------------------------------------

# Listens on a socket of the machine, takes one connection, and does nothing more.
_RANK_0 = """
import socket, sys, time
listening = socket.socket(socket.AF_UNIX)
listening.bind("\\0" + sys.argv[1])
listening.listen()
print(flush=True)
taken = listening.accept()
time.sleep(60)
"""


@pytest.fixture
def rank0() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A process with a connection to it."""
    name = f"workbench-test-{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen([sys.executable, "-c", _RANK_0, name], stdout=subprocess.PIPE)
    process.stdout.readline()
    with process.stdout, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(f"\0{name}")
        yield process, sock
        process.kill()
        process.wait()


def found(watch: Rank0Liveness, now: float, timeout_s: float = 10.0) -> str:
    """Why rank 0 counts as lost, at the latest after a while: a signal needs a moment."""
    deadline = time.monotonic() + timeout_s
    while not watch.why and time.monotonic() < deadline:
        watch.look(now)
        time.sleep(0.01)
    return watch.why


@LINUX
def test_a_rank_0_that_lives_is_not_lost(rank0: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    """A process of this machine that is there and not stopped counts as alive, however silent it is."""
    watch = Rank0Liveness(rank0[1], peer_timeout_s=1.0)
    watch.look(FOREVER)
    watch.sign_of_life(0.0)
    watch.look(FOREVER)
    assert watch.why == ""


@LINUX
def test_a_rank_0_that_was_killed_is_lost_at_once(rank0: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    """Its process is missed, and named, though it was heard a moment ago."""
    process, sock = rank0
    watch = Rank0Liveness(sock, peer_timeout_s=FOREVER)
    watch.sign_of_life(10.0)
    process.kill()
    assert f"its process {process.pid} has ended" in found(watch, now=10.0)


@LINUX
def test_a_rank_0_that_is_stopped_is_lost_by_its_silence(rank0: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    """Stopped for longer than the timeout counts as lost; for less, it may go on."""
    process, sock = rank0
    watch = Rank0Liveness(sock, peer_timeout_s=30.0)
    watch.sign_of_life(10.0)
    process.send_signal(signal.SIGSTOP)
    assert found(watch, now=39.9, timeout_s=0.2) == ""
    assert f"its process {process.pid} has been stopped for 30 s" in found(watch, now=40.1)


def test_over_a_network_silence_is_a_loss() -> None:
    """Of another host only signs of life are known; before the first, nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sock = socket.create_connection(listening.getsockname(), 5)
        with sock, listening.accept()[0]:
            watch = Rank0Liveness(sock, peer_timeout_s=30.0)
            watch.look(FOREVER)
            assert watch.why == ""
            watch.sign_of_life(10.0)
            watch.look(39.9)
            assert watch.why == ""
            watch.look(40.1)
            assert watch.why == "no sign of life for 30 s"


def test_a_rank_that_was_stopped_itself_has_heard_nothing() -> None:
    """After this rank was stopped for long the silence of rank 0, which may have been stopped, too, counts anew."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sock = socket.create_connection(listening.getsockname(), 5)
        with sock, listening.accept()[0]:
            watch = Rank0Liveness(sock, peer_timeout_s=30.0)
            watch.sign_of_life(10.0)
            watch.look(12.0, slept_s=2.0)
            watch.look(111.0, slept_s=98.0)
            watch.look(140.9)
            assert watch.why == ""
            watch.look(141.1)
            assert watch.why == "no sign of life for 30 s"
