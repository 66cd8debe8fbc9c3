"""join(): who has joined contributes zeros until its join() ends, however it ends, and not a moment longer."""

from __future__ import annotations

import random

import pytest
from coordination import Coordinator, Item

from workbench.core.messages import Announce, Decision, Event, Kind, Left, Raised, ReduceOp, Request, Response
from workbench.runtime.control.codec import decode_decision, encode_decision
from workbench.runtime.events import Began, Blocked, Ended

JOIN = Request("join.join", Kind.JOIN)
X = Request("allreduce.x", Kind.ALLREDUCE, "float32", (2,), ReduceOp.SUM)


def take(coordinator: Coordinator, event: Event, now: float = 0.0) -> list[Response]:
    """What the ranks are told, without what only concerns the numbers of unnamed tensors."""
    out: list[Item] = coordinator.take(event, now)
    return [response for response in coordinator.responses(out) if response.kind is not Kind.RENUMBER]


@pytest.mark.parametrize(
    "end", [Raised(1, "KeyboardInterrupt", final=False), Raised(1, "KeyError"), Ended(1), Began(1), Left(1)], ids=repr
)
def test_a_join_ends_with_its_cell_or_script(end: Event) -> None:
    """The others' join() ends with an error that names the rank; no sum is complete without the rank from then on."""
    coordinator = Coordinator(3, grace_s=5.0)
    take(coordinator, Announce(1, (JOIN,)))
    take(coordinator, Announce(2, (JOIN,)))
    (over,) = take(coordinator, end)
    assert over.kind is Kind.JOIN
    assert over.error
    assert "ank 1" in over.error[1]
    for rank in (0, 2):
        assert not [one for one in take(coordinator, Announce(rank, (X,), seen=coordinator.number)) if not one.error]


def test_a_rank_that_submits_has_left_its_join() -> None:
    """A script that was interrupted in join() and goes on: its next tensor is not left out of the sum."""
    coordinator = Coordinator(2)
    take(coordinator, Announce(1, (JOIN,)))
    (over,) = take(coordinator, Announce(1, (X,)))
    assert over.kind is Kind.JOIN
    assert "Rank 1 called join() and submitted 'allreduce.x'" in over.error[1]
    (response,) = take(coordinator, Announce(0, (X,)))
    assert (response.error, response.joined) == ((), ())


def test_a_join_can_be_called_again() -> None:
    """After one that failed, all join as if nothing had been; the last to come is told."""
    coordinator = Coordinator(2)
    take(coordinator, Announce(1, (JOIN,)))
    take(coordinator, Raised(1, "KeyboardInterrupt", final=False))
    take(coordinator, Began(1))
    assert take(coordinator, Announce(1, (JOIN,), seen=coordinator.number)) == []
    (response,) = take(coordinator, Announce(0, (JOIN,), seen=coordinator.number))
    assert (response.kind, response.root, response.error) == (Kind.JOIN, 0, ())


@pytest.mark.parametrize(
    ("event", "error"), [(Raised(0, "KeyError: 'lr'", final=False), "KeyError"), (Ended(0), "idle")]
)
def test_a_rank_that_never_joins_is_named(event: Event, error: str) -> None:
    """It raised, or its cell has ended, while the others wait in join(): they are told after the grace."""
    coordinator = Coordinator(3, grace_s=0.5)
    for rank in (1, 2):
        take(coordinator, Announce(rank, (JOIN,)))
        take(coordinator, Blocked(rank, ((0, "join.join", "in the cell, line 3: hvd.join()"),)))
    take(coordinator, event)
    assert coordinator.undecided(0.1)
    (response,) = coordinator.responses(coordinator.expire(1.0))
    assert response.kind is Kind.JOIN
    assert "ank 0" in response.error[1]
    assert error in response.error[1]
    assert "hvd.join()" in response.error[1]


def test_who_has_joined_is_said() -> None:
    """A response says who took no part, so that what such a rank submits later is not taken for it."""
    coordinator = Coordinator(3)
    take(coordinator, Announce(1, (JOIN,)))
    take(coordinator, Announce(0, (X,)))
    (response,) = take(coordinator, Announce(2, (X,)))
    assert response.joined == (1,)
    decision = Decision(7, [response])
    assert decode_decision(encode_decision(decision)) == decision


def test_no_sum_leaves_out_a_rank_that_is_not_in_join() -> None:
    """Whatever the ranks do, in whatever order: a sum lacks a rank only while that rank's join() waits."""
    dice, n, partial = random.Random(7), 3, 0
    for _ in range(200):
        coordinator, joined, announced = Coordinator(n, grace_s=0.0), set[int](), set[int]()
        for now in range(1, 60):
            rank = dice.randrange(n)
            names = [(X,), (X,), (JOIN,)]
            event: Event = dice.choice([Began(rank), Ended(rank), Raised(rank, "", final=False)])
            if dice.random() < 0.6:
                event = Announce(rank, dice.choice(names), seen=coordinator.number)
            joining = {rank} if isinstance(event, Announce) and event.items == (JOIN,) else set()
            joined -= {rank}
            for response in take(coordinator, event, float(now)):
                if response.kind is Kind.JOIN:
                    joined, joining = set(), set()
                elif not response.error:
                    assert set(response.joined) <= joined | joining
                    assert not announced.intersection(response.joined), "it has submitted its part"
                    announced.clear()
                    partial += bool(response.joined)
            joined |= joining
    assert partial > 100


# --- unnamed tensors, which ranks number by themselves --------------------------------------------------


def test_what_a_cell_left_behind_does_not_meet_the_next_one() -> None:
    """Rank 0 has submitted an unnamed tensor alone; it must not become a part of the next cell's first sum."""
    coordinator = Coordinator(2, grace_s=5.0)
    unnamed, later = (Request(name, Kind.ALLREDUCE, "float32", (2,)) for name in ("allreduce.noname.0", "allreduce.y"))
    for event in (Began(0), Began(1), Announce(0, (unnamed, later)), Ended(0)):
        assert take(coordinator, event) == []
    (given_up,) = take(coordinator, Ended(1))
    assert given_up.name == "allreduce.noname.0"
    assert given_up.error[0] == "MissingRanksError"
    assert "rank 0 in a cell that has ended" in given_up.error[1]
    assert coordinator.waiting() == {"allreduce.y": [1]}


def test_what_waits_while_a_rank_is_in_its_cell_is_kept() -> None:
    """Rank 1 is still in the first cell while rank 0 begins the second: it may still submit its part."""
    coordinator = Coordinator(2, grace_s=5.0)
    unnamed = Request("allreduce.noname.0", Kind.ALLREDUCE, "float32", (2,))
    for event in (Began(0), Began(1), Announce(0, (unnamed,)), Ended(0), Began(0)):
        assert take(coordinator, event) == []
    (response,) = take(coordinator, Announce(1, (unnamed,)))
    assert not response.error


def test_a_failed_cell_has_all_ranks_number_anew() -> None:
    """Even if nothing was in flight: the interrupted rank may have used up a number more than the rest."""
    coordinator = Coordinator(2)
    out = coordinator.take(Raised(1, "KeyboardInterrupt", final=False), 0.0)
    assert [response.kind for response in coordinator.responses(out)] == [Kind.RENUMBER]


@pytest.mark.parametrize("slow", [0, 1])
def test_what_a_failed_cell_left_behind_ends_with_a_name_too(slow: int) -> None:
    """Rank 0's gradient waits, rank 1 has raised: its gradient of the next step must not be added to the old one."""
    coordinator = Coordinator(2, grace_s=5.0)
    for event in (Began(0), Began(1), Announce(0, (X,))):
        assert take(coordinator, event) == []
    raised = [Ended(1), Raised(1, "KeyError", final=False)]
    told = [take(coordinator, event) for event in ([*raised, Ended(0)] if slow == 0 else [Ended(0), *raised])]
    assert [len(each) for each in told] == [0, 0, 1]
    assert (told[-1][0].name, told[-1][0].error[0]) == ("allreduce.x", "MissingRanksError")
    take(coordinator, Began(1))
    assert take(coordinator, Announce(1, (X,), seen=coordinator.number)) == []
    take(coordinator, Began(0))
    (response,) = take(coordinator, Announce(0, (X,), seen=coordinator.number))
    assert not response.error
    take(coordinator, Announce(0, (X,), seen=coordinator.number))
    assert take(coordinator, Ended(0)) == [], "that failure is over"


def test_two_cells_of_which_one_failed_do_not_meet() -> None:
    """Rank 0's cell has raised, and it has begun another one, while rank 1 is still in the first."""
    coordinator = Coordinator(2, grace_s=5.0)
    for event in (Began(0), Began(1), Ended(0), Raised(0, "KeyError", final=False), Began(0), Announce(0, (X,))):
        assert take(coordinator, event) == []
    (response,) = take(coordinator, Announce(1, (X,)))
    assert response.error[0] == "MissingRanksError"
    assert "rank 1 submitted it in a cell that failed" in response.error[1]


def test_a_set_that_is_gone_answers() -> None:
    """A thread submits to a process set while another removes it: an error, and no sum of one rank."""
    coordinator = Coordinator(2)
    (response,) = take(coordinator, Announce(0, (Request("x", Kind.ALLREDUCE, "float32", (2,), process_set=7),)))
    assert response.error == ("CollectiveError", "'x': its process set was removed.")


def test_who_submits_and_then_joins_takes_part() -> None:
    """What a rank has submitted before its join() is a part of the sum, large or small, and its handle ends."""
    coordinator = Coordinator(2)
    assert take(coordinator, Announce(1, (X, JOIN))) == []
    (response,) = take(coordinator, Announce(0, (X,)))
    assert (response.error, response.joined) == ((), ())


def test_what_the_last_rank_submits_before_its_join_needs_those_that_have_joined() -> None:
    """Also where one message brings both: the sum is complete before the join is, of zeros for who has joined."""
    coordinator = Coordinator(2)
    assert take(coordinator, Announce(1, (JOIN,))) == []
    late, over = take(coordinator, Announce(0, (X, JOIN)))
    assert (late.name, late.error) == (X.name, ())
    assert (over.kind, over.error) == (Kind.JOIN, ())
