"""Who is alive: by the process on this host, by the signs of life on others."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from workbench.runtime.liveness import LifeWatch, host_id, is_alive
from workbench.runtime.messages import Beat

FOREVER = 1e9


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, and is gone after the test."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def gone(watch: LifeWatch, now: float, timeout_s: float = 10.0) -> list[int]:
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
    watch = LifeWatch(peer_timeout_s=1.0)
    watch.meet(Beat(1, host_id(), child.pid), now=0.0)
    assert watch.lost(FOREVER) == []


@pytest.mark.parametrize("reaped", [False, True], ids=["zombie", "reaped"])
def test_a_killed_process_is_lost(child: subprocess.Popen[bytes], reaped: bool) -> None:
    """A process killed with -9 is lost at once and reported once, also before its parent has asked for it."""
    watch = LifeWatch(peer_timeout_s=FOREVER)
    watch.meet(Beat(1, host_id(), child.pid), now=0.0)
    watch.meet(Beat(0, host_id(), os.getpid()), now=0.0)
    child.send_signal(signal.SIGKILL)
    if reaped:
        child.wait()
    assert gone(watch, now=0.1) == [1]
    assert watch.lost(0.2) == []
    assert not is_alive(child.pid)


def test_the_reason_names_the_process(child: subprocess.Popen[bytes]) -> None:
    """Whoever reads of the loss finds the process id to look for in the logs."""
    watch = LifeWatch(peer_timeout_s=1.0)
    watch.meet(Beat(3, host_id(), child.pid), now=0.0)
    child.kill()
    child.wait()
    (lost,) = watch.lost(0.0)
    assert lost.rank == 3
    assert str(child.pid) in lost.why


def test_a_rank_on_another_host_is_lost_by_its_silence() -> None:
    """Of another host only signs of life are known: silence longer than the timeout is a loss, reported once.

    The process id is this process's own: on another host it means nothing.
    """
    watch = LifeWatch(peer_timeout_s=30.0)
    watch.meet(Beat(1, "elsewhere", os.getpid()), now=0.0)
    assert watch.lost(29.9) == []
    watch.heard(1, 20.0)
    assert watch.lost(49.9) == []
    (lost,) = watch.lost(50.1)
    assert lost.rank == 1
    assert "30 s" in lost.why
    assert watch.lost(99.0) == []


def test_who_said_good_bye_is_not_lost(child: subprocess.Popen[bytes]) -> None:
    """A rank that left may end or fall silent."""
    watch = LifeWatch(peer_timeout_s=1.0)
    watch.meet(Beat(1, host_id(), child.pid), now=0.0)
    watch.meet(Beat(2, "elsewhere", 1), now=0.0)
    watch.forget(1)
    watch.forget(2)
    child.kill()
    child.wait()
    watch.heard(2, 0.0)
    assert watch.lost(FOREVER) == []


def test_a_stranger_is_not_watched() -> None:
    """A sign of life of a rank that never introduced itself starts no watch."""
    watch = LifeWatch(peer_timeout_s=1.0)
    watch.heard(5, 0.0)
    assert watch.lost(FOREVER) == []


def test_this_process_is_alive() -> None:
    """The process that asks is alive, and it is on its own host."""
    assert is_alive(os.getpid())
    assert host_id() == host_id() != ""
