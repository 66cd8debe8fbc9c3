"""Barriers of the ranks of one machine: who comes first waits, but not for ever; what was written before is seen."""

from __future__ import annotations

import random
import threading
import time

import pytest
from memory_world import nodes

from workbench.errors import DeadlineError, PeerLostError
from workbench.transport.shm.node import HEADER_BYTES, Node


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_what_was_written_before_is_read_after(n: int) -> None:
    """Over many rounds, with some ranks slow, every rank sees each other rank's number of this round and no other."""

    def run(node: Node) -> int:
        members, dice, wrong = list(range(n)), random.Random(node.rank), 0
        words = [node.bytes(rank, HEADER_BYTES, 8).view("int64") for rank in members]
        for step in range(500):
            if dice.random() < 0.02:
                time.sleep(dice.random() / 500)
            words[node.rank][0] = step
            node.barrier(members)
            wrong += sum(int(word[0] != step) for word in words)
            node.barrier(members)
        return wrong

    assert nodes(n, run, reserved=4096) == [0] * n


def test_sets_that_overlap_meet_in_one_order() -> None:
    """Each two ranks count their own meetings, so sets in any mixture never take one meeting for another one."""
    sets = [[0, 1], [1, 2], [0, 1, 2], [2, 3], [0, 3], [0, 1, 2, 3], [1, 3]]
    plan = [random.Random(5).choice(sets) for _ in range(600)]

    def run(node: Node) -> int:
        dice, wrong = random.Random(node.rank), 0
        words = [node.bytes(rank, HEADER_BYTES, 8).view("int64") for rank in range(4)]
        for step, members in enumerate(plan):
            if node.rank not in members:
                continue
            if dice.random() < 0.02:
                time.sleep(dice.random() / 500)
            words[node.rank][0] = step
            node.barrier(members)
            wrong += sum(int(words[rank][0] != step) for rank in members)
            node.barrier(members)
        return wrong

    assert nodes(4, run, reserved=4096) == [0] * 4


@pytest.mark.parametrize("members", [[0, 1, 2, 3], [3, 1], [2]])
def test_numbers_are_exchanged(members: list[int]) -> None:
    """Each member gets the numbers of all, in the order of the members; also again and again, and negative ones."""

    def run(node: Node) -> list[list[int]]:
        rounds = (0, -7, 1 << 60) if node.rank in members else ()
        return [node.exchange(members, base + node.rank) for base in rounds]

    found = nodes(4, run)
    expected = [[base + rank for rank in members] for base in (0, -7, 1 << 60)]
    assert found == [expected if rank in members else [] for rank in range(4)]


def test_who_never_comes_is_not_waited_for() -> None:
    """After the deadline there is an error that names the rank; meanwhile ``tick`` was called again and again."""
    over = threading.Event()

    def run(node: Node) -> tuple[int, str]:
        if node.rank == 1:
            over.wait(20)
            return 0, ""
        ticks: list[float] = []
        node.tick, node.timeout_s = lambda: ticks.append(0), 0.5
        try:
            with pytest.raises(DeadlineError) as caught:
                node.barrier([0, 1])
        finally:
            over.set()
        return len(ticks), str(caught.value)

    ticks, text = nodes(2, run)[0]
    assert ticks > 1
    assert "local rank 1 did not come within 0.5 s" in text
    assert "WORKBENCH_DATA_TIMEOUT_S" in text


def test_a_tick_can_end_the_wait() -> None:
    """What ``tick`` raises, when a rank was lost, comes out of the meeting."""
    over = threading.Event()

    def run(node: Node) -> None:
        if node.rank == 1:
            over.wait(20)
            return

        def lost() -> None:
            raise PeerLostError("Rank 1 was lost.")

        node.tick = lost
        try:
            with pytest.raises(PeerLostError, match="Rank 1 was lost"):
                node.barrier([0, 1])
        finally:
            over.set()

    nodes(2, run)


def test_a_sleeper_is_woken_by_who_comes() -> None:
    """A rank that fell asleep long ago goes on when the late one comes, without a tick more."""
    asleep = threading.Event()

    def run(node: Node) -> None:
        if node.rank == 1:
            assert asleep.wait(20)
        else:
            node.tick = asleep.set
        node.barrier([0, 1])

    nodes(2, run)


def test_nothing_is_kept_after_the_end() -> None:
    """A closed node lets go of all memory, of the others' too."""

    def run(node: Node) -> int:
        node.barrier([0, 1])
        node.barrier([0, 1])
        node.close()
        return len(node._arenas) + (node.own is not None)

    assert nodes(2, run) == [0, 0]


def test_who_meets_a_rank_that_has_given_up_is_told() -> None:
    """It had come before, so the meeting itself would succeed; but what was read in its arrays may be void."""
    given_up = threading.Event()

    def run(node: Node) -> str:
        if node.rank == 0:
            with pytest.raises(DeadlineError):
                node.barrier([0, 1])
            node.give_up()
            node.give_up()  # again: nothing happens
            given_up.set()
            return "gave up"
        assert given_up.wait(30.0)
        try:
            node.barrier([0, 1])
        except RuntimeError as error:
            return str(error)
        return "met"

    assert nodes(2, run, timeout_s=0.3) == ["gave up", "local rank 0 has left this collective"]
