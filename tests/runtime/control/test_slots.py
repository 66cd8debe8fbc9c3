"""Slots: whatever the ranks do and whenever they look, all decide the same, and nothing is lost or done twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import pytest

import workbench as wb
from workbench.core.messages import Announce, Kind, Request
from workbench.errors import CollectiveError, MismatchError
from workbench.job.context import HOLDER
from workbench.runtime.control.slots import Slots

SEEN = 7  # the decision that opens a term


def values_of(rank: int, ids: Sequence[int]) -> dict[int, bytes]:
    """What a rank sends with these."""
    return {i: b"%d.%d" % (rank, each) for i, each in enumerate(ids) if each % 2}


class World:
    """Some ranks' slots in one process; rank 0 closes the term when it likes, and the others hear of it later.

    Args:
        size: number of ranks.
        dice: decides who does something next.
        room: bytes of a slot.
    """

    def __init__(self, size: int, dice: random.Random, room: int = 2048) -> None:
        self.dice, self.size = dice, size
        memory = [memoryview(bytearray(room)) for _ in range(size)]
        self.ranks = [Slots(rank, size) for rank in range(size)]
        for one in self.ranks:
            one.connect(memory, [lambda: None] * size)

    def term(self, orders: list[list[int]]) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        """The ranks announce these, some ids at a time, until rank 0 closes the term.

        Returns:
            By rank, what it has decided; what rank 0 counts for it; and what it announces anew, or never wrote.
        """
        term = self.ranks[0].open()
        left = [list(order) for order in orders]
        decided, again = ([list[int]() for _ in orders] for _ in range(2))
        joined = {0}
        self.ranks[0].join(term, SEEN)
        word = None
        heard = set[int]()
        while len(heard) < self.size:
            rank = self.dice.randrange(self.size)
            one = self.ranks[rank]
            match self.dice.choice(["join", "write", "write", "take", "take", "close", "hear"]):
                case "join" if rank not in joined:
                    one.join(term, SEEN)
                    joined.add(rank)
                case "write" if left[rank] and rank in joined and rank not in heard:
                    n = self.dice.randint(1, 4)
                    ids = tuple(left[rank][:n])
                    if one.write(Announce(rank, ids, SEEN, values_of(rank, ids))):
                        del left[rank][:n]
                case "take" if rank in joined and rank not in heard:
                    decided[rank] += self.taken(one)
                case "close" if word is None and self.dice.random() < 0.02:
                    word = one_word = self.ranks[0].close()
                    assert not self.ranks[0].is_open()
                    assert not self.ranks[0].write(Announce(0, (1,), SEEN)), one_word
                case "hear" if word and rank in joined and rank not in heard:
                    complete, seen, _ = word
                    units, late = one.finish(complete, seen)
                    decided[rank] += [each for unit in units for each in unit.ids]
                    again[rank] += [each for event in late for each in event.items]
                    heard.add(rank)
        assert word
        counted = [list[int]() for _ in orders]
        for event, _ in word[2]:
            counted[event.rank] += event.items
        return decided, counted, [late + rest for late, rest in zip(again, left, strict=True)]

    def taken(self, one: Slots) -> list[int]:
        """What a rank finds complete now; each rank's values are its own."""
        found = []
        while unit := one.take():
            for rank, values in enumerate(unit.values):
                assert {i: bytes(value) for i, value in values.items()} == values_of(rank, unit.ids)
            found += unit.ids
            one.release()
        return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("same", [True, False], ids=["one order", "some differ"])
def test_all_decide_alike_and_nothing_is_lost(size: int, same: bool) -> None:
    """In hundreds of random terms: one decided sequence, and each id is decided, counted, or announced anew."""
    decided_ids = counted_ids = late_ids = 0
    for seed in range(40):
        dice = random.Random(seed)
        world = World(size, dice)
        for _ in range(8):
            order = dice.sample(range(1, 1000), 60)
            orders = [list(order) for _ in range(size)]
            if not same:
                at = dice.randrange(59)
                orders[-1][at : at + 2] = reversed(orders[-1][at : at + 2])
            decided, counted, rest = world.term(orders)
            assert all(one == decided[0] for one in decided), f"seed {seed}"
            for rank in range(size):
                assert decided[rank] + counted[rank] + rest[rank] == orders[rank], f"seed {seed}, rank {rank}"
            decided_ids, counted_ids = decided_ids + len(decided[0]), counted_ids + sum(map(len, counted))
            late_ids += sum(map(len, rest))
    assert decided_ids > 1000  # or nothing was tested
    assert size == 1 or (counted_ids > 100 and late_ids > 100)


def test_who_is_ahead_does_not_write_over_what_others_read() -> None:
    """A slot that is full takes no more until all ranks have used what is in it; then it goes on."""
    world = World(2, random.Random(0), room=1024)
    one, other = world.ranks
    term = one.open()
    for each in world.ranks:
        each.join(term, SEEN)
    wrote = 0
    while one.write(Announce(0, (wrote + 1,), SEEN, {0: b"x" * 100})):
        wrote += 1
    assert 2 < wrote < 10
    for i in range(wrote):
        assert other.write(Announce(1, (i + 1,), SEEN, {0: b"y" * 100}))
        assert (unit := other.take())
        assert [bytes(each[0])[:1] for each in unit.values] == [b"x", b"y"]
    assert not one.write(Announce(0, (99,), SEEN, {0: b"x" * 100})), "the other may still read the values"
    other.release()
    while one.take():
        one.release()
    assert one.write(Announce(0, (99,), SEEN, {0: b"x" * 100}))


def ask(name: str, shape: tuple[int, ...] = (3,)) -> Request:
    """To add up such a tensor."""
    return Request(name, Kind.ALLREDUCE, "float32", shape)


def test_unnamed_tensors_are_agreed_on_if_all_say_the_same() -> None:
    """A request of an unnamed tensor goes in full; if another rank's differs, rank 0 gets both in full."""
    one, other = World(2, random.Random(0)).ranks
    term = one.open()
    one.join(term, SEEN)
    other.join(term, SEEN)
    same, wrong = ask("allreduce.noname.0"), ask("allreduce.noname.1")
    for rank, slots in enumerate((one, other)):
        assert slots.write(Announce(rank, (4, same), SEEN, {0: b"v"}))
        assert not slots.write(Announce(rank, (ask("allreduce.named"),), SEEN)), "a new name is rank 0's"
    assert [unit.ids for unit in (one.take(), other.take()) if unit] == [(4, 0), (4, 0)]
    assert one.write(Announce(0, (wrong,), SEEN))
    assert other.write(Announce(1, (ask("allreduce.noname.1", (4,)),), SEEN))
    assert one.take() is None
    assert one.differs
    complete, seen, left = one.close()
    assert (complete, seen) == (2, [3, 3])
    assert [event.items for event, _ in left] == [(wrong,), (ask("allreduce.noname.1", (4,)),)]


# --- in a job -----------------------------------------------------------------------------------------


def terms() -> int:
    """How many terms rank 0 has opened."""
    return server._coordinator.slots._terms if (server := HOLDER.get().server) and server._coordinator.slots else 0


def test_random_orders_are_summed_as_by_one_process() -> None:
    """Ranks submit tensors in orders of their own, named and unnamed, waited for and not: the sums are right."""
    n, fewest, most = 3, 120, 3000  # rounds: on a busy machine terms are rare

    def job() -> None:
        rank, dice = wb.rank(), random.Random(0)
        for step in range(most):
            if step >= fewest and wb.broadcast(terms(), 0, "terms") > 2:
                return
            names = [f"t{i}" for i in range(6)]
            if step % 3 == 0:
                random.Random(100 * step + rank).shuffle(names)  # another order on each rank
            elif step % 7 == 0:
                dice.shuffle(names)
            mine = {name: np.full(1 + 700 * int(name[1]), rank + step, np.float32) for name in names}
            handles = {name: wb.allreduce_async(mine[name], name, wb.Sum) for name in names}
            assert float(wb.allreduce(np.float32(rank), op=wb.Sum)) == sum(range(n))
            for name, handle in handles.items():
                np.testing.assert_array_equal(handle.wait(20), sum(range(n)) + n * step, err_msg=name)
            if step % 5 == 0:
                wb.barrier()
                np.testing.assert_array_equal(wb.broadcast(mine["t1"], step % n, "b"), step % n + step)
        raise AssertionError(f"{terms()} terms in {most} rounds")

    wb.run_threads(n, job)


def test_a_difference_is_named_as_ever() -> None:
    """Amid a term one rank changes the shape under a known name: the same error on all ranks, and the job goes on."""

    def job() -> str:
        rank = wb.rank()
        for _ in range(20):
            wb.allreduce(np.ones(3), "x")
        with pytest.raises(MismatchError, match=r"(?s)tensor shapes.*rank 0: \[3\].*rank 1: \[4\]") as caught:
            wb.allreduce(np.ones(3 + rank), "x")
        for step in range(20):
            assert wb.allreduce(np.full(2, float(step)), "y").tolist() == [step, step]
        return str(caught.value)

    first, second = wb.run_threads(2, job)
    assert first == second


def test_a_rank_that_does_not_come_is_named_as_ever() -> None:
    """Amid a term a rank's script ends: the others' collective fails at once, and the text names it."""

    def job() -> float:
        for _ in range(20):
            wb.allreduce(np.ones(3), "x")
        if wb.rank() == 1:
            return 0.0
        begun = time.monotonic()
        with pytest.raises(CollectiveError, match=r"[Rr]ank 1 has left the job"):
            wb.allreduce(np.ones(3), "x")
        return time.monotonic() - begun

    assert wb.run_threads(2, job)[0] < 20.0


def test_ids_of_a_term_are_counted_once() -> None:
    """Threads that write, close and open at the same time: each announcement is in exactly one place."""
    size, each_rank = 2, 400
    world = World(size, random.Random(0), room=64 << 10)
    found: list[list[int]] = [[] for _ in range(size)]
    words: list[tuple[int, list[int]]] = []
    done = threading.Event()
    term = world.ranks[0].open()
    counted: list[list[int]] = [[] for _ in range(size)]
    late: list[list[int]] = [[] for _ in range(size)]

    def rank(number: int) -> None:
        one = world.ranks[number]
        one.join(term, SEEN)
        for i in range(1, each_rank):
            if not one.write(Announce(number, (i,), SEEN, values_of(number, (i,)))):
                late[number].append(i)
            found[number] += world.taken(one)
        while not done.is_set():
            found[number] += world.taken(one)
        units, again = one.finish(*words[0])
        found[number] += [each for unit in units for each in unit.ids]
        late[number][:0] = [each for event in again for each in event.items]

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    while world.ranks[0]._position < each_rank // 4:
        time.sleep(0)  # the others' turn
    complete, seen, left = world.ranks[0].close()
    for event, _ in left:
        counted[event.rank] += event.items
    words.append((complete, seen))
    done.set()
    for thread in threads:
        thread.join(20)
    assert found[0] == found[1] == list(range(1, complete + 1))
    for number in range(size):
        where = Counter(chain(found[number], counted[number], late[number]))
        assert set(where.values()) == {1}
        assert len(where) == each_rank - 1
        assert all(a < b for a, b in pairwise(counted[number]))
