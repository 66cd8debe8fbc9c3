"""The steady state: whatever the ranks do, its wrapper decides what counting decides."""

from __future__ import annotations

import random
import sys
from itertools import accumulate, pairwise

import numpy as np
import pytest
from coordination import Coordinator, response_of
from worlds import Twins, allreduce

from workbench.core.messages import Announce, Kind, Left, Raised, ReduceOp, Request
from workbench.runtime.events import Began, Ended, Lost
from workbench.runtime.faults.stall import StallInspector
from workbench.runtime.steady.steady_state import Record, Sequences, Unit

SEEDS = range(60)

# --- alone --------------------------------------------------------------------------------------------


def cut(order: list[int], dice: random.Random) -> list[Record]:
    """The same ids in records of random length, with values here and there."""
    records, start = [], 0
    while start < len(order):
        ids = tuple(order[start : start + dice.randint(1, 8)])
        records.append(Record(ids, {i: b"%d" % each for i, each in enumerate(ids) if each % 3 == 0}))
        start += len(ids)
    return records


def units_of(said: list[list[Record]], dice: random.Random) -> list[Unit]:
    """What is complete when the ranks' records come in random turns, looked at after each, or now and then."""
    sequences, found, left = Sequences(len(said)), list[Unit](), [list(records) for records in said]
    while any(left):
        rank = dice.choice([rank for rank, records in enumerate(left) if records])
        sequences.add(rank, left[rank].pop(0))
        while (dice.random() < 0.7 or not any(left)) and (n := sequences.complete()):
            found.append(sequences.pop(n))
    assert not sequences
    assert sequences.take() == []
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_units_depend_on_the_records_alone(size: int) -> None:
    """Whoever comes when, and whenever somebody looks: the units are the same, end where a record ends, and are all."""
    dice = random.Random(size)
    for _ in range(50):
        order = dice.sample(range(1000), 30)
        said = [cut(order, dice) for _ in range(size)]
        ends = {sum(len(one.ids) for one in records[: i + 1]) for records in said for i in range(len(records))}
        first = units_of(said, dice)
        assert [each for unit in first for each in unit.ids] == order
        assert set(accumulate(len(unit.ids) for unit in first)) == ends
        for unit in first:
            own = {i: b"%d" % each for i, each in enumerate(unit.ids) if each % 3 == 0}
            assert unit.values == [own] * size
        assert units_of(said, dice) == first


def test_another_order_is_noticed_and_nothing_is_lost() -> None:
    """As soon as two ranks differ, complete() says so; take() has all that is in no unit, and then it is empty."""
    sequences, a = Sequences(3), {0: b"a"}
    for rank, ids in ((0, (1, 2, 3)), (1, (1, 2, 3, 4))):
        sequences.add(rank, Record(ids, a))
        assert sequences.complete() == 0
    sequences.add(2, Record((1,), a))
    assert sequences.pop(sequences.complete() or 0) == Unit((1,), [a, a, a])
    sequences.add(2, Record((3,), a))
    assert sequences.complete() is None
    assert sequences.take() == [(0, Record((2, 3), {})), (1, Record((2, 3, 4), {})), (2, Record((3,), a))]
    assert not sequences
    assert sequences.take() == []


# --- against counting ---------------------------------------------------------------------------------


def steps(dice: random.Random, size: int, same: bool) -> list[list[list[Request]]]:
    """By step, what each rank submits: mostly the same names again, in one order or in each rank's own."""
    model = [allreduce(f"w{i}") for i in range(dice.randint(1, 12))]
    group = [allreduce(f"g{i}", group="g", group_size=3) for i in range(3)]
    found = []
    for step in range(dice.randint(3, 8)):
        names = list(model)
        if dice.random() < 0.3:
            names.append(allreduce(f"new{step}"))
        if dice.random() < 0.5:
            names += group
        if dice.random() < 0.2:
            names[0] = allreduce("w0", length=5 + step)  # a known name with another shape gets a new id
        if dice.random() < 0.3:
            dice.shuffle(names)
        found.append([names if same else dice.sample(names, len(names)) for _ in range(size)])
    return found


@pytest.mark.long
@pytest.mark.parametrize("same", [True, False], ids=["one order", "any order"])
def test_the_quick_way_decides_what_counting_decides(same: bool) -> None:
    """In dozens of random schedules each event completes the same names, and the same ranks are waited for.

    At the end every rank has one answer to each of its submissions.
    """
    quick = 0
    for seed in SEEDS:
        dice = random.Random(seed)
        twins = Twins(dice.randint(2, 4), dice.choice([3, 1024]), dice)
        for orders in steps(dice, twins.size, same):
            for rank, requests in enumerate(orders):
                twins.submit(rank, requests)
            twins.run(dice.choice([20, 10_000]))  # some ranks run ahead into the next step
        twins.run()
        twins.compare_waiting()
        assert twins.idle(), f"seed {seed}"
        quick += twins.quick.quick
    assert quick > 50  # or nothing was tested


@pytest.mark.long
def test_failures_and_process_sets_are_decided_alike() -> None:
    """The same amid cells that raise, begin and end, deadlines, warnings, and names of process sets."""
    quick = failed = 0
    for seed in SEEDS:
        dice = random.Random(1000 + seed)
        twins = Twins(dice.randint(2, 4), dice.choice([5, 1024]), dice)
        ranks = range(twins.size)
        members = tuple(sorted(dice.sample(ranks, dice.randint(1, twins.size))))
        for rank in ranks:
            twins.submit(rank, [Request("set", Kind.ADD_SET, splits=members)])
        twins.run()
        for orders in steps(dice, twins.size, same=dice.random() < 0.7):
            apart = [allreduce(f"s{i}", process_set=1) for i in range(dice.choice([0, 0, 2]))]
            for rank, requests in enumerate(orders):
                alone = [request for request in requests if not request.group]
                twins.submit(rank, [*alone, *(apart if rank in members else [])])
            if dice.random() < 0.5:
                twins.run(dice.randint(0, 15))
                rank = dice.choice(ranks)
                twins.tell(dice.choice([Raised(rank, "ValueError", final=False), Began(rank), Ended(rank)]))
                if dice.random() < 0.3:
                    twins.pass_time()
            twins.run()
        for _ in range(20):  # what one rank has submitted alone ends at its deadline
            if not twins.idle():
                twins.pass_time()
                twins.run()
        assert twins.idle(), f"seed {seed}"
        quick += twins.quick.quick
        failed += twins.failed
    assert quick > 100
    assert failed > 20


def test_values_that_ride_give_the_same_bits() -> None:
    """4 KiB of each rank, reduced with every operation: both ways give one result, and it is the sum of the values."""
    quick = 0
    for seed in range(40):
        dice = random.Random(seed)
        twins = Twins(dice.randint(2, 4), 1024, dice)
        ops = [op for op in ReduceOp if op is not ReduceOp.ADASUM]
        names = [allreduce(f"w{i}", 1024, op=ops[i % len(ops)], postscale=0.3) for i in range(10)]
        results = []
        for step in range(4):
            values = np.random.default_rng([seed, step]).standard_normal((twins.size, 10, 1024)).astype(np.float32)
            twins.values = {(r, f"w{i}"): values[r, i].tobytes() for r in range(twins.size) for i in range(10)}
            if step == 3:
                del twins.values[twins.size - 1, "w2"]  # one rank's value is missing: the data plane moves it
            order = dice.sample(names, 10)
            for rank in range(twins.size):
                twins.submit(rank, order if dice.random() < 0.8 else dice.sample(names, 10))
            results = twins.collect()
            sums = values[:, 1].astype(np.float64).sum(axis=0) * 0.3
            np.testing.assert_allclose(np.frombuffer(results[0, "w1"], np.float32), sums, atol=1e-5)
            assert results.keys() == {(0, f"w{i}") for i in range(10) if (step, i) != (3, 2)}
        assert twins.idle()
        quick += twins.quick.quick
    assert quick > 500


# --- the ends of the quick way ------------------------------------------------------------------------


def known(size: int, *names: str, **options: object) -> tuple[Coordinator, list[int]]:
    """A coordinator to which some names are known, and their ids."""
    coordinator = Coordinator(size, **options)
    requests = tuple(map(allreduce, names))
    out = [item for rank in range(size) for item in coordinator.take(Announce(rank, requests), 0.0)]
    return coordinator, [response_of(item).cache_id for item in out]


def test_a_steady_step_is_answered_with_ids() -> None:
    """Names that all know are complete as soon as the last rank has announced them, in the order of announcement."""
    coordinator, (a, b, c) = known(3, "a", "b", "c")
    assert coordinator.take(Announce(1, (c, a, b)), 1.0) == []
    assert coordinator.take(Announce(0, (c, a)), 1.0) == []
    assert coordinator.take(Announce(2, (c,)), 1.0) == [c]
    assert coordinator.take(Announce(2, (a, b)), 1.0) == [a]
    assert coordinator.take(Announce(0, (b,)), 1.0) == [b]
    assert coordinator.waiting() == {}


@pytest.mark.parametrize("gone", [Lost(1, "killed"), Left(1), Raised(1, "KeyError")], ids=["lost", "left", "raised"])
def test_a_rank_that_is_gone_ends_what_misses_it(gone: Lost | Left | Raised) -> None:
    """What is under way on the quick way ends as everything else does; what the rank had announced can complete."""
    coordinator, (a, b, c) = known(3, "a", "b", "c")
    assert coordinator.take(Announce(0, (a, b, c)), 1.0) == []
    assert coordinator.take(Announce(1, (a,)), 1.0) == []
    failed = coordinator.responses(coordinator.take(gone, 1.0))
    assert all(response.error for response in failed)
    if isinstance(gone, Lost):
        assert [response.kind for response in failed] == [Kind.SHUTDOWN]
        assert "In flight: a, b, c" in failed[0].error[1]
    else:
        assert [response.name for response in failed] == ["b", "c"]
        assert coordinator.waiting() == {"a": [2]}
        assert coordinator.take(Announce(2, (a,)), 1.0) == [a]


def test_a_rank_that_waits_alone_on_the_quick_way_is_reported() -> None:
    """The stall inspector sees what is under way there, says who is missing, and ends it at its deadline."""
    coordinator, (a, b) = known(2, "a", "b", stall=StallInspector(10.0, 30.0))
    assert coordinator.take(Announce(0, (a, b)), 100.0) == []
    assert coordinator.stalled(105.0) == ("", [])
    report, out = coordinator.stalled(111.0)
    assert report.splitlines()[-1] == "1: [a, b]"
    assert out == []
    _, out = coordinator.stalled(131.0)
    assert [(response.name, response.error[0]) for response in map(response_of, out)] == [
        ("a", "DeadlineError"),
        ("b", "DeadlineError"),
    ]


def test_ranks_that_never_quite_meet_are_not_stalled() -> None:
    """Where one rank is always a name ahead, and every name completes soon, there is nothing to warn of."""
    coordinator, ids = known(2, *(f"w{i}" for i in range(20)), stall=StallInspector(10.0, 0))
    coordinator.take(Announce(0, (ids[0],)), 0.0)
    for now, (behind, ahead) in enumerate(pairwise(ids)):
        coordinator.take(Announce(0, (ahead,)), now)
        assert coordinator.stalled(now + 0.5) == ("", [])
        assert coordinator.take(Announce(1, (behind,)), now + 0.5) == [behind]


def test_what_goes_the_quick_way_is_remembered() -> None:
    """A full cache forgets the name that was not used for the longest time, and use on the quick way counts."""
    coordinator, (a, b) = known(2, "a", "b", cache_capacity=2)
    coordinator.take(Announce(0, (a,)), 1.0)
    assert coordinator.take(Announce(1, (a,)), 1.0) == [a]
    for rank in range(2):
        coordinator.take(Announce(rank, (allreduce("c"),)), 2.0)
    assert coordinator.last.evicted == [b]


def test_join_meets_the_quick_way() -> None:
    """A rank that joins while others are under way is no longer missed by them."""
    coordinator, (a, b) = known(2, "a", "b")
    assert coordinator.take(Announce(0, (a, b)), 1.0) == []
    out = coordinator.take(Announce(1, (Request("join.join", Kind.JOIN),)), 1.0)
    assert [response.name for response in coordinator.responses(out)] == ["a", "b"]


def test_an_announcement_costs_the_same_among_many_ranks() -> None:
    """While a rank is silent nothing can be complete, so the others' sequences are not looked at: calls are counted."""

    def calls(size: int) -> int:
        sequences, counted, record = Sequences(size), 0, Record((1, 2, 3), {})
        for rank in range(size - 2):
            sequences.add(rank, record)

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            sequences.add(size - 2, record)
            assert sequences.complete() == 0
        finally:
            sys.setprofile(None)
        sequences.add(size - 1, record)
        assert sequences.complete() == 3
        return counted

    assert calls(8) == calls(1024)
