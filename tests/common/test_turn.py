"""Whose turn it is to run a loop."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from workbench.common import turn as turns
from workbench.common.turn import Turn


class Loop(threading.Thread):
    """Does what is in a list, one round after the other, as the engine does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.turn, self.work, self.done = Turn(), list[int](), list[int]()
        self.more, self.going, self.inside, self.clashes = threading.Semaphore(0), True, 0, 0

    def run(self) -> None:
        """A round, and a rest."""
        while self.going:
            if self.more.acquire(timeout=0.05):
                self.one_round()
            self.turn.park(self.idle)

    def idle(self) -> bool:
        """Is all done?"""
        return not self.work

    def one_round(self) -> None:
        """All that is there; never by two threads at once."""
        self.inside += 1
        self.clashes += self.inside > 1
        while self.work:
            self.done.append(self.work.pop(0))
        self.inside -= 1

    def submit(self, item: int) -> None:
        """To be done by whoever runs the loop."""
        self.work.append(item)
        self.more.release()
        self.turn.notify()


@pytest.fixture
def loop() -> Iterator[Loop]:
    """It runs."""
    one = Loop()
    one.start()
    yield one
    one.going = False
    one.more.release()
    one.turn.notify()
    one.join(10)
    assert not one.is_alive()


def test_only_a_loop_that_rests_can_be_taken_over(loop: Loop) -> None:
    """Before somebody wants to, the loop's own thread has the turn; afterwards one thread has it, and no other."""
    assert not loop.turn.take()
    loop.turn.request()
    loop.more.release()
    while not loop.turn.take():
        loop.turn.request()
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(loop.turn.take()))
    other.start()
    other.join()
    assert taken == [False]
    loop.turn.give()


def test_the_loops_thread_goes_on_by_itself(loop: Loop) -> None:
    """A caller that has taken its turn once, and never comes again, is not waited for."""
    loop.turn.request()
    loop.more.release()
    while not loop.turn.take():
        loop.turn.request()
    loop.turn.give()
    loop.work.append(1)  # without a ring: as a thread that Ctrl-C has hit before it could
    loop.more.release()
    while not loop.done:
        pass
    assert loop.done == [1]


def test_a_ring_ends_the_rest(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, however long the rest is to be."""
    monkeypatch.setattr(turns, "REST_S", 3600.0)
    loop.turn.request()
    loop.more.release()
    while not loop.turn.resting:
        pass
    loop.submit(1)
    while not loop.done:
        pass
    assert loop.done == [1]


def test_everything_is_done_once_and_never_by_two(loop: Loop) -> None:
    """Threads that submit, and threads that take over, at random: nothing is lost, doubled or done by two at once."""

    def caller(seed: int) -> None:
        choice: Any = random.Random(seed)
        for i in range(400):
            loop.turn.request()
            if choice.random() < 0.5 and loop.turn.take():
                loop.work.append(1000 * seed + i)
                loop.one_round()
                loop.turn.give()
                if not loop.idle():
                    loop.turn.notify()
            else:
                loop.submit(1000 * seed + i)

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(3)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    while len(loop.done) < 1200:
        pass
    assert sorted(loop.done) == [1000 * seed + i for seed in range(3) for i in range(400)]
    assert loop.clashes == 0
