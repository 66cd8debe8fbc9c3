"""Can a missing rank still come? Pure: what the ranks say goes in, errors come out, the clock is an argument."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from coordination import Coordinator

from workbench.core.messages import Announce, Kind, Left, Raised, Request
from workbench.runtime.events import Began, Blocked, Ended, Sent
from workbench.runtime.faults.deadlock_detection import Attendance, Missed

GRACE_S = 0.5


def ask(name: str, kind: Kind = Kind.ALLREDUCE) -> Request:
    """A request for four floats."""
    return Request(f"{kind.value}.{name}", kind, "float32", (4,))


def started(n: int, **submitted: list[int]) -> Coordinator:
    """A coordinator at time 0; the ranks that have submitted each name."""
    coordinator = Coordinator(n, grace_s=GRACE_S)
    for name, ranks in submitted.items():
        for rank in ranks:
            assert coordinator.take(Announce(rank, (ask(name),)), 0.0) == []
    return coordinator


def errors(out: list) -> dict[str, tuple[str, str]]:
    """What failed, by name."""
    return {response.name: response.error for response in out}


def blocked(rank: int, *names: str, where: str = "in train.py, line 7: f(x)") -> Blocked:
    """A rank that waits for names."""
    return Blocked(rank, tuple((0, f"allreduce.{name}", where) for name in names))


# --- idle ranks ---------------------------------------------------------------------------------------


def test_a_rank_that_is_idle_fails_what_waits_for_it() -> None:
    """After the grace, with what each rank does, and where the waiting ones stand."""
    coordinator = started(3, x=[0, 2])
    coordinator.take(blocked(0, "x"), 0.1)
    coordinator.take(Ended(1), 0.2)
    assert coordinator.expire(0.69) == []
    ((name, (kind, text)),) = errors(coordinator.expire(0.71)).items()
    assert (name, kind) == ("allreduce.x", "MissingRanksError")
    lines = text.splitlines()
    assert lines[0] == "Rank 1 is idle, so 'allreduce.x', submitted by ranks 0, 2, can never complete."
    assert lines[1:4] == [
        "  rank 0: waiting in train.py, line 7: f(x)",
        "  rank 1: idle, for the cell has ended there",
        "  rank 2: submitted it",
    ]
    assert "if rank == 0" in lines[4]
    assert coordinator.waiting() == {}


@pytest.mark.parametrize("event", [Began(1), Announce(1, (ask("y"),))], ids=["next cell", "announcement"])
def test_an_idle_rank_that_comes_back_is_waited_for(event: Began | Announce) -> None:
    """A rank that running something again may still come."""
    coordinator = started(2, x=[0])
    coordinator.take(Ended(1), 0.0)
    coordinator.take(event, 0.3)
    assert coordinator.expire(100.0) == []


def test_a_rank_that_is_idle_from_the_start_gets_the_grace() -> None:
    """Its cell may be on its way: the grace counts from the submission."""
    coordinator = Coordinator(2, grace_s=GRACE_S)
    coordinator.take(Ended(1), 0.0)
    coordinator.take(Announce(0, (ask("x"),)), 50.0)
    coordinator.take(blocked(0, "x"), 50.1)
    assert coordinator.expire(50.4) == []
    assert errors(coordinator.expire(50.6))["allreduce.x"][0] == "MissingRanksError"


def sent(rank: int, number: int, version: int, idle: Sequence[int] = (), **engines: int) -> Sent:
    """What a rank knows of the notebook: ``e7``, the number of the newest cell for engine 7, which is rank 7."""
    return Sent(rank, rank, number, version, tuple((int(e[1:]), newest) for e, newest in engines.items()), tuple(idle))


def waits_in_cell(number: int) -> Coordinator:
    """Rank 0 waits in that cell, which was sent to rank 1, too; rank 1 has ended the one before."""
    coordinator = Coordinator(2, grace_s=GRACE_S)
    coordinator.take(sent(1, number - 1, 8, e0=4, e1=number - 1), 0.0)
    coordinator.take(Ended(1), 0.0)
    coordinator.take(Began(0, numbered=True), 1.0)
    coordinator.take(sent(0, number, 9, e0=number, e1=number), 1.0)
    coordinator.take(Announce(0, (ask("x"),)), 1.0)
    coordinator.take(blocked(0, "x"), 1.1)
    return coordinator


@pytest.mark.parametrize("raised", [False, True])
def test_a_rank_whose_cell_is_on_its_way_is_late(raised: bool) -> None:
    """However long it takes to begin. Once it has passed the cell over, and the notebook calls it idle, it is."""
    coordinator = waits_in_cell(5)
    if raised:
        coordinator.take(Raised(1, "ValueError: in the last cell\n", final=False), 1.2)
    assert coordinator.expire(1000.0) == []
    assert coordinator.take(sent(1, 5, 9, e0=5, e1=5), 1000.0) == []
    assert coordinator.expire(2000.0) == []
    (kind, _), *_ = errors(coordinator.take(sent(0, 5, 10, (1,), e0=5, e1=5), 2000.0)).values()
    assert kind == ("RankFailedError" if raised else "MissingRanksError")


def test_the_newest_word_of_the_notebook_counts() -> None:
    """Not one that was overtaken on its way, of another rank's."""
    coordinator = waits_in_cell(5)
    coordinator.take(sent(0, 5, 12, e0=5, e1=5), 1.2)
    coordinator.take(sent(1, 4, 11, (1,), e0=5, e1=4), 1.3)
    assert coordinator.expire(100.0) == []


def test_who_gets_cells_from_another_client_is_idle_when_they_have_ended() -> None:
    """The notebook knows nothing of those, and will not call anybody idle."""
    coordinator = waits_in_cell(5)
    coordinator.take(sent(1, 5, 9, e0=5, e1=5), 1.2)
    assert errors(coordinator.take(Began(0), 2.0))["allreduce.x"][0] == "MissingRanksError"


def test_who_has_submitted_is_not_about_to_come() -> None:
    """Though the notebook has sent it another cell since: that is not what the others wait for."""
    coordinator = Coordinator(3, grace_s=GRACE_S)
    coordinator.take(sent(2, 4, 8, e0=5, e1=5, e2=5), 0.0)
    for rank in (0, 2):
        coordinator.take(Announce(rank, (ask("x"),)), 1.0)
    coordinator.take(blocked(0, "x"), 1.1)
    _, text = errors(coordinator.take(Left(1), 1.2))["allreduce.x"]
    assert text.splitlines()[2:4] == ["  rank 1: left the job", "  rank 2: submitted it"]


def test_what_idle_ranks_have_submitted_stays() -> None:
    """An asynchronous submission for which nobody waits outlives its cell."""
    coordinator = started(2, x=[0])
    coordinator.take(Ended(0), 0.0)
    coordinator.take(Ended(1), 0.0)
    assert coordinator.expire(100.0) == []
    (response,) = coordinator.take(Announce(1, (ask("x"),)), 100.0)
    assert response.error == ()


def test_a_failed_cell_gives_up_what_it_had_submitted() -> None:
    """Its handles are lost, so a later cell must not meet them: they end, with its exception."""
    coordinator = started(2, x=[0, 1][:1], y=[1])
    out = errors(coordinator.take(Raised(0, "Traceback\nKeyboardInterrupt\n", final=False), 0.1))
    assert list(out) == ["cell", "allreduce.x"]  # the first is about the numbers of unnamed tensors
    assert out["allreduce.x"][0] == "RankFailedError"
    assert out["allreduce.x"][1].endswith("KeyboardInterrupt")
    assert coordinator.waiting() == {"allreduce.y": [0]}


def test_a_rank_whose_error_has_several_lines_is_quoted_with_the_first() -> None:
    """The last line of one of our own errors is advice, which says nothing about what was raised."""
    coordinator = started(2, x=[0])
    text = (
        'Traceback (most recent call last):\n  File "the cell", line 1, in <module>\n'
        "workbench.errors.MismatchError: Mismatched shapes\n  rank 0: [1]\nSend the same shape on every rank.\n"
    )
    coordinator.take(Raised(1, text, final=False), 0.0)
    _, told = errors(coordinator.expire(5.0))["allreduce.x"]
    assert "  rank 1: raised workbench.errors.MismatchError: Mismatched shapes\n" in told


CONSEQUENCES = {
    "left": (True, Left(0)),
    "script": (True, Raised(0, "RankFailedError: rank 3 raised\n")),
    "cell": (False, Raised(0, "RankFailedError: rank 3 raised\n", final=False)),
}


@pytest.mark.parametrize("case", CONSEQUENCES)
def test_the_first_cause_is_named_to_who_comes_late(case: str) -> None:
    """A slow rank is told of the rank that raised first, not of those that left or raised because of that one."""
    final, consequence = CONSEQUENCES[case]
    coordinator = started(4, x=[0])
    told = coordinator.take(Raised(3, "ZeroDivisionError: no data\n", final=final), 0.1) + coordinator.expire(1.0)
    assert errors(told)["allreduce.x"][0] == "RankFailedError"
    coordinator.take(consequence, 1.1)
    late = coordinator.take(Announce(2, (ask("x"),), seen=coordinator.number), 1.2) or coordinator.expire(2.0)
    kind, text = errors(late)["allreduce.x"]
    assert kind == "RankFailedError"
    assert text.startswith("Rank 3 raised an exception, so 'allreduce.x', submitted by rank 2,")
    assert "no data" in text


# --- ranks that wait for each other -------------------------------------------------------------------


def test_two_ranks_that_wait_for_different_names() -> None:
    """Neither can go on: both names fail, each with both places."""
    coordinator = started(2, a=[0], b=[1])
    coordinator.take(blocked(0, "a", where="at A"), 0.1)
    coordinator.take(blocked(1, "b", where="at B"), 0.2)
    assert coordinator.expire(0.65) == []
    out = errors(coordinator.expire(0.75))
    assert list(out) == ["allreduce.a", "allreduce.b"]
    for name, ours, theirs in (("a", 0, 1), ("b", 1, 0)):
        kind, text = out[f"allreduce.{name}"]
        assert kind == "MissingRanksError"
        assert f"rank {ours}: waiting at {name.upper()}" in text
        other = "b" if name == "a" else "a"
        assert f"rank {theirs}: waiting for 'allreduce.{other}' at {other.upper()}" in text


def test_a_ring_of_waits_is_found_though_a_rank_waits_on_top() -> None:
    """0 waits for 1, 1 for 2, 2 for 1: a cycle of two, and one that hangs on it."""
    coordinator = started(3, a=[0, 2], b=[1, 0], c=[2, 0])
    coordinator.take(blocked(0, "a"), 0.0)
    coordinator.take(blocked(1, "b"), 0.0)
    coordinator.take(blocked(2, "c"), 0.0)
    assert set(errors(coordinator.expire(1.0))) == {"allreduce.a", "allreduce.b", "allreduce.c"}


def test_a_circle_through_several_sets_is_told_whole() -> None:
    """0 waits for 1 in one process set, 1 for 2 in another, 2 for 0 in a third: each learns what all three do."""
    attendance = Attendance(GRACE_S)
    waiting = {(rank + 1, "allreduce.x"): Missed(0.0, (rank,), ((rank + 1) % 3,)) for rank in range(3)}
    for rank in range(3):
        attendance.take(Blocked(rank, ((rank + 1, "allreduce.x", f"at {rank}"),)), 0.0)
    found = attendance.unsatisfiable(waiting, 1.0)
    assert found.keys() == waiting.keys()
    for _, text in found.values():
        assert all(re.search(rf"rank {rank}: waiting .*at {rank}", text) for rank in range(3)), text
        assert [f"  'allreduce.x' misses rank {rank}" in text for rank in range(3)] == [True] * 3


def test_who_waits_for_a_busy_rank_is_not_stuck() -> None:
    """0 waits for 1, which waits for 2, which computes: all may still come."""
    coordinator = started(3, a=[0, 2], b=[0, 1])
    coordinator.take(blocked(0, "a"), 0.0)
    coordinator.take(blocked(1, "b"), 0.0)
    assert coordinator.expire(100.0) == []


def test_who_goes_on_is_not_stuck() -> None:
    """A rank that says that it goes on, or whose tensor is complete, waits no longer."""
    coordinator = started(2, a=[0], b=[1])
    coordinator.take(blocked(0, "a"), 0.0)
    coordinator.take(blocked(1, "b"), 0.0)
    coordinator.take(Blocked(1, ()), 0.1)
    assert coordinator.expire(100.0) == []
    coordinator = started(2, a=[0], b=[1])
    coordinator.take(blocked(0, "a"), 0.0)
    coordinator.take(blocked(1, "b"), 0.0)
    assert len(coordinator.take(Announce(0, (ask("b"),)), 0.1)) == 1
    assert coordinator.expire(100.0) == []


def test_a_rank_with_two_waiting_threads_goes_on_if_one_does() -> None:
    """Rank 0's other thread waits for a tensor that can still complete, so it may submit the first one's partner."""
    coordinator = started(3, a=[0], b=[1], c=[0])
    coordinator.take(blocked(0, "a", "c"), 0.0)
    coordinator.take(blocked(1, "b"), 0.0)
    assert coordinator.take(blocked(2), 0.0) == []
    coordinator = started(3, a=[0, 2], b=[1, 2], c=[0, 1])
    coordinator.take(blocked(0, "a", "c"), 0.0)
    coordinator.take(blocked(1, "b"), 0.0)
    assert coordinator.expire(100.0) == []


def test_two_verbs_under_one_name_are_a_mismatch() -> None:
    """The ranks wait for each other because the verbs differ: that is said, with each rank's verb."""
    coordinator = Coordinator(3, grace_s=GRACE_S)
    for rank, kind in enumerate((Kind.ALLREDUCE, Kind.ALLGATHER, Kind.ALLREDUCE)):
        coordinator.take(Announce(rank, (ask("m", kind),)), 0.0)
        coordinator.take(Blocked(rank, ((0, f"{kind.value}.m", ""),)), 0.0)
    out = errors(coordinator.expire(0.6))
    assert len({text for _, text in out.values()}) == 1
    kind, text = out["allreduce.m"]
    assert kind == "MismatchError"
    assert "One rank did an allgather, but another rank did an allreduce" in text
    assert "ranks 0, 2: allreduce" in text
    assert "rank 1: allgather" in text


@pytest.mark.parametrize(
    ("comes", "line"), [(True, "ranks 0, 2: allreduce"), (False, "rank 2: running something else")]
)
def test_a_mismatch_of_verbs_has_a_line_for_every_rank(comes: bool, line: str) -> None:
    """Two ranks wait for each other; a third announced its name just now, and does not wait yet, or has not come."""
    coordinator = Coordinator(3, grace_s=GRACE_S)
    for rank, kind in enumerate((Kind.ALLREDUCE, Kind.ALLGATHER)):
        coordinator.take(Announce(rank, (ask("m", kind),)), 0.0)
        coordinator.take(Blocked(rank, ((0, f"{kind.value}.m", ""),)), 0.0)
    if comes:
        assert coordinator.take(Announce(2, (ask("m"),)), 0.49) == []
    out = errors(coordinator.expire(0.6))
    assert set(out) == {"allreduce.m", "allgather.m"}
    for kind, text in out.values():
        assert kind == "MismatchError"
        assert "rank 1: allgather" in text
        assert line in text
        assert ("rank 0: allreduce" in text) != comes


def test_gone_ranks_need_no_grace() -> None:
    """A rank that left never comes; the error also tells what the others do."""
    coordinator = started(3, x=[0])
    coordinator.take(blocked(0, "x", where="in a.py, line 1: g()"), 0.0)
    kind, text = errors(coordinator.take(Left(2), 0.1))["allreduce.x"]
    assert kind == "ShutDownError"
    assert "rank 0: waiting in a.py, line 1: g()" in text
    assert "rank 2: left the job" in text


def test_graphs_that_may_submit_more_are_given_time() -> None:
    """Two ranks wait crosswise in graphs: that is a deadlock only after much more than the grace."""
    coordinator = started(2, x=[0], y=[1])
    for rank, name in enumerate("xy"):
        coordinator.take(replace(blocked(rank, name), more=True), 0.0)
    assert coordinator.expire(5 * GRACE_S) == []
    assert coordinator.undecided(5 * GRACE_S)
    assert set(errors(coordinator.expire(13 * GRACE_S))) == {"allreduce.x", "allreduce.y"}
