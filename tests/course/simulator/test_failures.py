"""Ranks that die in the simulator: the others are told, in time and all of them, and go on without it."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from workbench.collectives import ring_allreduce
from workbench.course import drawing
from workbench.course.simulator import Comm, DeadlockError, Kill, RankDiedError, simulate

NOTICE_S = 5e-4


def until_it_is_done(comm: Any, length: int = 4000) -> Any:
    """Add up each rank's number plus one, again without the dead if need be; the sum, and over whom."""
    while True:
        x = np.full(length, 1.0 + comm.members[comm.rank])
        try:
            ring_allreduce(comm, x)
            comm.barrier()  # so that nobody returns while another one has to begin again
        except RankDiedError:
            comm = comm.shrink()
        else:
            return x[0], comm.members


def test_survivors_reduce_without_the_dead() -> None:
    """Whichever message it dies at, every survivor ends, with the sum of the survivors alone."""
    for message in [0, 1, 2]:
        for victim in ["first", "last"]:
            for n in [2, 3, 4, 7]:
                dead = 0 if victim == "first" else n - 1
                run = simulate(n, until_it_is_done, kills=[Kill(dead, message=message)], notice_s=NOTICE_S)
                assert list(run.died) == [dead]
                assert run.results[dead] is None
                wanted = n * (n + 1) / 2 - (dead + 1)
                assert [one[0] for rank, one in enumerate(run.results) if rank != dead] == [wanted] * (n - 1)


def test_a_death_is_known_after_the_notice() -> None:
    """Who computes does not notice; who waits is told at the death plus the notice, not earlier and not later."""

    def told(comm: Any) -> float:
        if comm.rank == 2:
            comm.compute(2.0)
        with suppress(RankDiedError):
            comm.barrier()
        return float(comm.now)

    run = simulate(3, told, kills=[Kill(1, at_s=0.25)], notice_s=0.5)
    assert run.died == {1: 0.25}
    assert run.results[1] is None
    assert run.results[0] == pytest.approx(0.75)
    assert run.results[2] == pytest.approx(2.0)


def test_a_death_amid_computing_cuts_it_off() -> None:
    """The rank's clock stops where it was killed."""

    def compute(comm: Any) -> None:
        for _ in range(10):
            comm.compute(0.1)

    run = simulate(1, compute, kills=[Kill(0, at_s=0.35)])
    assert run.clocks == [0.35]
    assert sum(one.end - one.begin for one in run.computed) == pytest.approx(0.35)


def test_what_was_sent_before_still_arrives() -> None:
    """A message that left before the death is received; the next one is not."""

    def function(comm: Any) -> Any:
        if comm.rank == 0:
            comm.send("first", 1)
            comm.send("second", 1)
        first = comm.recv(source=0)
        with pytest.raises(RankDiedError, match="rank 0 is dead") as told:
            comm.recv(source=0)
        assert told.value.ranks == (0,)
        return first

    assert simulate(2, function, kills=[Kill(0, message=1)]).results == [None, "first"]


def test_any_deaths_at_any_time() -> None:
    """Up to all but one die at times drawn by the seed: each survivor has an epoch's sum; two runs are the same."""
    for seed in range(12):
        drawn = random.Random(seed)
        n = drawn.choice([2, 3, 4, 5, 8])
        whole = simulate(n, until_it_is_done).time_s
        victims = drawn.sample(range(n), drawn.randint(1, n - 1))
        kills = [Kill(rank, at_s=drawn.uniform(0, 3 * whole + NOTICE_S)) for rank in victims]
        run, again = (simulate(n, until_it_is_done, kills=kills, notice_s=NOTICE_S) for _ in range(2))
        assert (run.results, run.clocks, run.died) == (again.results, again.clocks, again.died)
        assert run.messages == again.messages
        for rank, result in enumerate(run.results):
            assert (result is None) == (rank in run.died)
            if result is not None:
                assert rank in result[1]
                assert result[0] == sum(member + 1 for member in result[1])


def test_nothing_of_an_old_epoch_arrives_in_a_new_one() -> None:
    """A small message that nobody had received when a rank died is gone, though the tag and the ranks are the same."""

    def function(comm: Any) -> Any:
        if comm.rank == 2:
            comm.compute(1.0)
        if comm.rank == 0:
            comm.send("old", 1, tag=7)
        with pytest.raises(RankDiedError):
            comm.recv(source=2)
        comm = comm.shrink()
        if comm.rank == 0:
            comm.send("new", 1, tag=7)
            return ""
        return comm.recv(source=0, tag=7)

    run = simulate(3, function, kills=[Kill(2, at_s=0.1)])
    assert run.results == ["", "new", None]
    assert run.unreceived == []


def test_a_death_while_others_wait_in_shrink() -> None:
    """They do not wait for the second one, but go on when they know: the new communicator has neither."""

    def function(comm: Any) -> Any:
        if comm.rank == 3:
            comm.compute(2.0)
        with suppress(RankDiedError):
            comm.barrier()
        return comm.shrink().members

    run = simulate(4, function, kills=[Kill(0, at_s=0.0), Kill(3, at_s=1.0)], notice_s=0.5, alpha_s=0.0)
    assert run.results == [None, (1, 2), (1, 2), None]
    assert run.clocks == [0.0, 1.5, 1.5, 1.0]


def test_one_that_has_returned_is_not_waited_for() -> None:
    """A survivor that ends without shrink() is no member of the next epoch."""

    def function(comm: Any) -> Any:
        with suppress(RankDiedError):
            comm.barrier()
        if comm.rank == 1:
            return "gone"
        comm = comm.shrink()
        return comm.allreduce(1)

    assert simulate(4, function, kills=[Kill(0, message=0)]).results == [None, "gone", 2, 2]


def test_who_does_not_catch_it_raises() -> None:
    """The error names the dead, the rank that was told, and the way out."""
    with pytest.raises(RankDiedError, match=r"rank 1 is dead.*comm\.shrink\(\)") as told:
        simulate(3, lambda comm: comm.barrier(), kills=[Kill(1, message=0)])
    assert told.value.ranks == (1,)
    assert told.value.rank in (0, 2)  # type: ignore[attr-defined]


def test_the_dead_stay_dead() -> None:
    """A bare except does not bring a rank back, and its thread ends."""

    def stubborn(comm: Any) -> str:
        for _ in range(3):
            try:
                comm.send("x", (comm.rank + 1) % comm.size)
            except BaseException:  # noqa: BLE001 - as a learner may write it
                continue
        return "alive"

    before = threading.active_count()
    run = simulate(2, stubborn, kills=[Kill(1, message=1)])
    assert run.results == ["alive", None]
    assert [count for count, _ in run.sent()] == [0, 0]  # none was received
    assert threading.active_count() == before


def test_a_deadlock_is_still_found() -> None:
    """Survivors who wait for each other in the new epoch are told so."""

    def function(comm: Any) -> Any:
        with suppress(RankDiedError):
            comm.barrier()
        return comm.shrink().recv()

    with pytest.raises(DeadlockError, match="nobody can go on"):
        simulate(3, function, kills=[Kill(0, message=0)])


def test_a_kill_that_cannot_be_is_refused() -> None:
    """By name, before anything runs."""
    for kill, words in [
        ({"rank": 0}, "either at_s"),
        ({"rank": 0, "at_s": 1.0, "message": 1}, "either at_s"),
        ({"rank": 4, "at_s": 1.0}, "no such rank among 4"),
        ({"rank": -1, "at_s": 1.0}, "no such rank among 4"),
    ]:
        with pytest.raises(ValueError, match=words):
            simulate(4, Comm.barrier, kills=[Kill(**kill)])


def test_the_picture_shows_the_death() -> None:
    """On the rank's track, and in the text."""
    run = simulate(3, until_it_is_done, kills=[Kill(1, message=1)], notice_s=NOTICE_S)
    figure = drawing.space_time(run, "Ring")
    assert "rank 1 is killed at" in figure.alt
    assert figure.svg.count("✕ killed") == 1
    assert "killed" not in drawing.space_time(simulate(3, until_it_is_done)).alt


def test_waits_in_vain_are_logged_and_drawn() -> None:
    """A wait that ends with the news of a death lasts until the news, and the picture's axis until there."""

    def ask(comm: Comm) -> float:
        if comm.rank:
            comm.compute(0.25)
            comm.send(None, dest=0)
        with pytest.raises(RankDiedError):
            comm.recv(source=1)
        return comm.now

    run = simulate(2, ask, kills=[Kill(1, message=0)], notice_s=0.5)
    assert run.results[0] == 0.75
    assert [(one.rank, one.peer, one.begin, one.end, one.verb) for one in run.in_vain] == [(0, 1, 0.0, 0.75, "recv")]
    figure = drawing.space_time(run)
    assert "wait for rank 1" in figure.svg
    assert "600 ms" in figure.svg
    assert simulate(3, Comm.barrier).in_vain == []
