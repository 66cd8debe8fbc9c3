"""The steady state: whatever the ranks do, its wrapper decides what counting decides."""

from __future__ import annotations

import random
import sys
from itertools import pairwise

import numpy as np
import pytest
from coordination import Coordinator, response_of
from worlds import Twins, allreduce

from workbench.core.messages import Announce, Kind, Left, Raised, ReduceOp, Request
from workbench.runtime.events import Began, Ended, Lost
from workbench.runtime.faults.stall import StallInspector
from workbench.runtime.steady.steady_state import Sequences

SEEDS = range(60)

# --- alone --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_what_all_have_announced_is_complete(size: int) -> None:
    """Of one order in random chunks, each add() completes what all ranks have now and had not before."""
    dice = random.Random(size)
    for _ in range(50):
        order = dice.sample(range(1000), 30)
        sequences, done, said = Sequences(size), 0, [0] * size
        while min(said) < len(order):
            rank = dice.choice([rank for rank in range(size) if said[rank] < len(order)])
            start, said[rank] = said[rank], dice.randint(said[rank], len(order))
            assert sequences.add(rank, tuple(order[start : said[rank]])) == order[done : min(said)]
            done = min(said)
            assert bool(sequences) == (max(said) > done)
        assert sequences.take() == {rank: [] for rank in range(size)}


def test_another_order_is_noticed_and_nothing_is_lost() -> None:
    """As soon as two ranks differ, add() says so; take() has all that is not complete, and then it is empty."""
    sequences = Sequences(3)
    assert sequences.add(0, (1, 2, 3)) == []
    assert sequences.add(1, (1, 2, 3, 4)) == []
    assert sequences.add(2, (1,)) == [1]
    assert sequences.add(2, (3,)) is None
    assert sequences.take() == {0: [2, 3], 1: [2, 3, 4], 2: [3]}
    assert not sequences
    assert sequences.take() == {0: [], 1: [], 2: []}


def test_a_part_of_a_group_is_not_complete() -> None:
    """Where one rank has announced a part of it only, all goes back to counting."""
    sequences = Sequences(2, self_contained=lambda ids: 2 not in ids or 3 in ids)
    assert sequences.add(0, (1, 2, 3)) == []
    assert sequences.add(1, (1, 2)) is None
    assert sequences.take() == {0: [1, 2, 3], 1: [1, 2]}
    assert sequences.add(0, (1, 2, 3)) == []
    assert sequences.add(1, (1, 2, 3)) == [1, 2, 3]


def test_values_are_kept_by_rank_and_id() -> None:
    """A value belongs to the id beside which it came, also when the ids are taken back."""
    sequences = Sequences(2)
    sequences.add(0, (7, 8, 9), {1: b"eight", 2: b"nine"})
    sequences.add(1, (7,), {0: b"seven"})
    sequences.take()
    assert sequences.values == {(0, 8): b"eight", (0, 9): b"nine", (1, 7): b"seven"}


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
    assert quick > 100  # or nothing was tested


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
        sequences, counted = Sequences(size), 0
        for rank in range(size - 2):
            sequences.add(rank, (1, 2, 3))

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            sequences.add(size - 2, (1, 2, 3))
        finally:
            sys.setprofile(None)
        assert sequences.add(size - 1, (1, 2, 3)) == [1, 2, 3]
        return counted

    assert calls(8) == calls(1024)
