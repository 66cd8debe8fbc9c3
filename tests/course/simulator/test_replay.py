"""Ranks that are run again from their start: nothing outside of them shows that they were, or an error says so."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from drawn_programs import PROGRAMS
from thorough import once_more

from workbench.course.judging.judge import judge
from workbench.course.simulator import scheduler, simulate
from workbench.course.simulator.replay import ReplayError
from workbench.course.tasks import task

COUNTED = 0


@pytest.fixture(autouse=True, params=["replay", once_more("threads")])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run again, as in a browser that cannot switch stacks; and as threads."""
    monkeypatch.setattr(scheduler, "stacks", lambda: request.param == "threads")
    return str(request.param)


@pytest.mark.parametrize("way", ["replay"], indirect=True)
def test_drawn_programs_do_what_they_do_as_threads(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds of messages, deaths and deadlocks: the same results, clocks, messages, or the same words."""
    names: dict[str, Any] = {}
    exec(PROGRAMS, names)
    seeds = random.Random(7).sample(range(1000), 30)
    again = [names["told"](seed) for seed in seeds]
    monkeypatch.setattr(scheduler, "stacks", lambda: True)
    assert again == [names["told"](seed) for seed in seeds]


def passes(comm: Any, value: Any = 0) -> Any:
    """To the right, and from the left."""
    return comm.sendrecv(value, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)


def test_what_ranks_change_outside_is_changed_once() -> None:
    """Arguments, lists and counters outside, attributes, random generators: after each run as with threads."""

    class Box:
        total = 0

    class Meta(type):
        pass

    class Kind(metaclass=Meta):
        pass

    others = [random.SystemRandom(), Kind, Kind(), random, {-1}, bytearray(b"x"), (1, [2]), np.array([None, {}])]
    box, seen, own, drawn = Box(), list[Any](), random.Random(3), np.random.default_rng(3)
    count, by_rank, array = 0, dict[int, Any](), np.zeros(4)

    def busy(comm: Any, given: Any) -> Any:
        nonlocal count
        global COUNTED
        found = []
        for i in range(4):
            given[comm.rank] += 1
            seen.append((comm.rank, i))
            by_rank.setdefault(comm.rank, []).append(i)
            others[4].add(10 * comm.rank + i)
            others[5] += b"y"
            others[6][1].append(i)
            others[7][1][comm.rank, i] = i
            box.total += comm.rank
            count += 1
            COUNTED += 1
            array[comm.rank] += 1
            found.append((own.random(), drawn.random(), random.random(), np.random.random(), passes(comm, i)))
        return found

    given = np.arange(4.0)
    random.seed(1)
    np.random.seed(1)
    run = simulate(4, busy, given)
    assert (count, box.total, COUNTED) == (16, 24, 16)
    globals()["COUNTED"] = 0
    assert given.tolist() == [4.0, 5.0, 6.0, 7.0]
    assert array.tolist() == [4.0] * 4
    assert [len(others[4]), len(others[5]), len(others[6][1]), len(others[7][1])] == [17, 17, 17, 16]
    assert by_rank == {rank: [0, 1, 2, 3] for rank in range(4)}
    assert sorted(seen) == [(rank, i) for rank in range(4) for i in range(4)]
    expected, first = random.Random(3), random.Random(1)
    assert sorted(one[0] for found in run.results for one in found) == sorted(expected.random() for _ in range(16))
    assert sorted(one[2] for found in run.results for one in found) == sorted(first.random() for _ in range(16))
    assert len({one[1] for found in run.results for one in found}) == 16
    assert [one[4] for one in run.results[0]] == [0, 1, 2, 3]


def test_what_is_put_outside_stays_the_rank_s_own() -> None:
    """A list that a rank has put into another one, and goes on to fill, is the one that is found there."""
    outside: list[Any] = []

    def fills(comm: Any) -> Any:
        mine: list[int] = []
        outside.append((comm.rank, {"mine": mine}))
        for i in range(3):
            mine.append(passes(comm, i))
        return mine

    run = simulate(3, fills)
    assert sorted((rank, one["mine"]) for rank, one in outside) == [(rank, [0, 1, 2]) for rank in range(3)]
    assert all(one["mine"] is run.results[rank] for rank, one in outside)


def test_what_was_received_may_be_changed() -> None:
    """Also between waits; the next time it is what came."""

    def adds(comm: Any) -> Any:
        got = passes(comm, np.ones(3))
        for _ in range(3):
            got += passes(comm, got)
        return got.tolist()

    assert simulate(3, adds).results == [[8.0] * 3] * 3


def test_each_line_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """In the order in which ranks come to it, whatever a finally says when a rank is left."""

    def prints(comm: Any) -> None:
        for i in range(3):
            print(f"{comm.rank}.{i}")
            try:
                passes(comm)
            finally:
                print(f"after {comm.rank}.{i}")

    simulate(3, prints)
    told = capsys.readouterr().out.split("\n")[:-1]
    lines = [f"{rank}.{i}" for rank in range(3) for i in range(3)]
    assert sorted(told) == sorted([*lines, *(f"after {line}" for line in lines)])


def test_a_bare_except_catches_no_leaving() -> None:
    """What a rank does after that does not count."""

    def catches(comm: Any) -> Any:
        try:
            return passes(comm, comm.rank)
        except:  # noqa: E722 - as a learner writes it
            return "caught"

    def tries_again(comm: Any) -> Any:
        while True:
            try:
                return passes(comm, comm.rank)
            except:  # noqa: E722
                pass

    for function in (catches, tries_again):
        assert simulate(3, function).results == [2, 0, 1]


@pytest.mark.parametrize("way", ["replay"], indirect=True)
def test_who_does_something_else_is_told() -> None:
    """An iterator outside cannot be put back; what it gives is sent, decides what comes, or is a result."""

    def sends(comm: Any) -> Any:
        return [passes(comm, next(numbers)) for _ in range(2)]

    def returns(comm: Any) -> Any:
        return [passes(comm) for _ in range(2 if next(numbers) < 2 else 0)]

    def raises(comm: Any) -> None:
        passes(comm)
        if next(numbers) > 1:
            raise ValueError("mine")
        passes(comm)

    def keeps(comm: Any) -> Any:
        mine = next(numbers)
        passes(comm)
        return mine

    told = []
    for function in (sends, returns, raises, keeps):
        numbers = itertools.count()
        with pytest.raises(ReplayError, match="when its function was run again from its start, it came to") as raised:
            simulate(2, function)
        told.append(str(raised.value))
    assert "to sendrecv(dest=1) with another value." in told[0]
    assert "to return, and before that to sendrecv(" in told[1]
    assert "it came to mine = 2, and before that to mine = 0." in told[3]
    assert all("a rank that has waited is run again from its start. Chrome and Edge 137" in one for one in told)


@pytest.mark.parametrize("way", ["threads"], indirect=True)
def test_a_judged_function_is_judged_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own arrays that it changes, the line that is wrong, and the score are told as with threads."""

    def in_place(comm: Any, x: Any) -> Any:
        total = comm.allreduce(x)
        x += passes(comm, x)
        return total

    def skips(comm: Any, x: Any) -> Any:
        chunks = np.array_split(x.copy(), comm.size)
        for step in range(comm.size - 1):
            chunks[comm.rank - step - 1] += passes(comm, chunks[comm.rank - step])
        return np.concatenate(chunks)

    told = []
    for stacks in (True, False):
        monkeypatch.setattr(scheduler, "stacks", lambda stacks=stacks: stacks)
        ring = task("03.ring_allreduce")
        told.append([(one.name, one.text) for answer in (in_place, skips) for one in judge(ring, answer)])
    assert told[0] == told[1]
    assert "rank 0 changes its own x" in str(told[1])
    assert "no step brings what is missing" in str(told[1])
