"""Sleep until a number in shared memory changes, among threads and among processes."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from workbench.transport.shm import futex
from workbench.transport.shm.arena import OwnArena

pytestmark = [pytest.mark.skipif(not futex.available, reason="no futex on this system"), pytest.mark.timeout(50)]
NEVER_S = 1000.0  # a sleep that nobody ends is a test that does not end


def test_a_number_that_has_changed_is_not_slept_for() -> None:
    """Who comes with an old number goes on at once."""
    arena = OwnArena(0)
    arena.view(64, 4).cast("I")[0] = 5
    for old in (0, 4, 6, 0x7FFFFFFF):
        futex.sleep_while(arena.address + 64, old, NEVER_S)
    arena.seal()


def test_a_sleep_ends_by_itself() -> None:
    """After its time a sleep ends, though nobody wakes it and the number is as it was."""
    arena = OwnArena(0)
    for timeout_s in (0.0, 0.001, 0.02):
        futex.sleep_while(arena.address + 64, 0, timeout_s)
    arena.seal()


def test_who_sleeps_is_woken() -> None:
    """wake() ends the sleep of all threads at this address, and of none at another, though no number has changed."""
    arena = OwnArena(0)

    def sleep(address: int) -> threading.Thread:
        thread = threading.Thread(target=futex.sleep_while, args=(address, 0, NEVER_S), daemon=True)
        thread.start()
        return thread

    here, there = [sleep(arena.address + 64) for _ in range(3)], sleep(arena.address + 68)
    for thread in here:
        while thread.is_alive():  # it may not have fallen asleep yet
            futex.wake(arena.address + 64)
            thread.join(0.01)
    assert there.is_alive()
    while there.is_alive():
        futex.wake(arena.address + 68)
        there.join(0.01)
    arena.seal()


def test_another_process_is_woken() -> None:
    """The address is another one there, and the memory is the same."""
    arena = OwnArena(0)
    script = (
        "import sys; from workbench.transport.shm import futex\n"
        "from workbench.transport.shm.arena import Ticket, open_arena\n"
        f"arena = open_arena({arena.ticket!r})\n"
        "print('asleep', flush=True)\n"
        f"futex.sleep_while(arena.address + 64, 0, {NEVER_S})\n"
        "print('awake', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "asleep\n"
        while child.poll() is None:
            futex.wake(arena.address + 64)
        assert child.stdout.read() == "awake\n"
    arena.seal()
