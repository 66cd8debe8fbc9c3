"""The coordinator alone: events go in, responses come out. No thread, no socket, no clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from coordination import Coordinator, Item, response_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.core import agreement
from workbench.core.coordinator import CountingCoordinator
from workbench.core.messages import Announce, Broke, Kind, Left, Raised, ReduceOp, Request, Response
from workbench.runtime.events import Beat, Began, Lost
from workbench.runtime.faults.disagreement import explain

respond = partial(agreement.respond, explain=explain)
# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def ask(name: str = "x", **fields: object) -> Request:
    """A request for the allreduce of four floats, or what ``fields`` says."""
    return replace(Request(name, Kind.ALLREDUCE, "float32", (4,)), **fields)


def plain(out: list[Item]) -> list[Response]:
    """Responses without their cache ids; none of them is a cached one."""
    return list(map(response_of, out))


def names(out: list[Item]) -> list[str]:
    """Names of the responses, in order."""
    return [response.name for response in plain(out)]


def all_announce(coordinator: Coordinator, *requests: Request, now: float = 0.0) -> list[Item]:
    """Every rank announces the same; what comes out in all."""
    return [item for rank in range(coordinator.size) for item in coordinator.take(Announce(rank, requests), now)]


# --- names become complete ----------------------------------------------------------------------------


@st.composite
def interleavings(draw: st.DrawFn) -> tuple[int, list[tuple[int, list[str]]]]:
    """(n, messages in the order in which rank 0 reads them): each rank has its own order of the same names."""
    n, count = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    queues: list[list[list[str]]] = []
    for _ in range(n):
        order = draw(st.permutations([f"t{i}" for i in range(count)]))
        ends = sorted({*draw(st.sets(st.integers(1, count))), count})
        queues.append([list(order[start:end]) for start, end in zip([0, *ends], ends, strict=False)])
    turns = draw(st.permutations([rank for rank in range(n) for _ in queues[rank]]))
    return n, [(rank, queues[rank].pop(0)) for rank in turns]


def told(n: int, messages: list[tuple[int, list[str]]], odd: str) -> list[Response]:
    """All responses to some messages; the last rank has another shape for the name ``odd``."""
    coordinator = Coordinator(n)
    out: list[Item] = []
    for rank, some in messages:
        items = tuple(ask(name, shape=(5,) if name == odd and rank == n - 1 else (4,)) for name in some)
        out += coordinator.take(Announce(rank, items), now=0.0)
    assert coordinator.waiting() == {}
    return plain(out)


@PROPERTY
@given(interleavings())
def test_responses_come_in_the_order_of_completion(case: tuple[int, list[tuple[int, list[str]]]]) -> None:
    """Each name is answered exactly once, at the moment when the last rank announces it."""
    n, messages = case
    seen: Counter[str] = Counter()
    expected = []
    for _, some in messages:
        for name in some:
            seen[name] += 1
            if seen[name] == n:
                expected.append(name)
    assert [response.name for response in told(n, messages, odd="")] == expected


@PROPERTY
@given(interleavings())
def test_the_answers_do_not_depend_on_the_order(case: tuple[int, list[tuple[int, list[str]]]]) -> None:
    """Whatever the interleaving, each name's answer is the one that an orderly world gets, errors included."""
    n, messages = case
    every = sorted({name for _, some in messages for name in some})
    orderly = told(n, [(rank, every) for rank in range(n)], odd="t0")
    assert sorted(told(n, messages, odd="t0"), key=lambda r: r.name) == orderly
    assert bool(orderly[0].error) == (n > 1)
    assert not any(response.error for response in orderly[1:])


def test_an_incomplete_name_is_named_with_the_ranks_that_it_misses() -> None:
    """``waiting()`` says who has not come; nothing comes out before all have."""
    coordinator = Coordinator(3)
    assert coordinator.take(Announce(1, (ask("x"), ask("y"))), 0.0) == []
    assert coordinator.take(Announce(2, (ask("x"),)), 0.0) == []
    assert coordinator.waiting() == {"x": [0], "y": [0, 2]}
    assert names(coordinator.take(Announce(0, (ask("y"), ask("x"))), 0.0)) == ["x"]
    assert coordinator.waiting() == {"y": [2]}


def test_a_name_can_be_used_again() -> None:
    """After its answer a name begins anew."""
    coordinator = Coordinator(2, cache_capacity=0)
    for _ in range(3):
        assert names(all_announce(coordinator, ask("x"))) == ["x"]


def test_rows_tell_what_each_rank_contributes() -> None:
    """First dimensions by rank, the matrix of splits, and the even cut of a reducescatter."""
    gathered = respond({rank: ask(kind=Kind.ALLGATHER, shape=(rank, 7)) for rank in (2, 0, 1)})
    assert gathered.rows == (0, 1, 2)
    splits = {rank: (rank, 10 * rank, 1) for rank in (1, 2, 0)}
    exchanged = respond({rank: ask(kind=Kind.ALLTOALL, shape=(sum(s),), splits=s) for rank, s in splits.items()})
    assert exchanged.rows == (0, 0, 1, 1, 10, 1, 2, 20, 1)
    for length in range(9):
        rows = respond({rank: ask(kind=Kind.REDUCESCATTER, shape=(length, 2)) for rank in range(3)}).rows
        assert list(rows) == [len(range(rank, length, 3)) for rank in range(3)]


@PROPERTY
@given(st.lists(st.booleans(), min_size=1, max_size=4))
def test_absent_ranks_take_part(absent: list[bool]) -> None:
    """A tensor is absent for all only if it is absent on every rank; one rank's absence is no disagreement."""
    response = respond({rank: ask(absent=flag) for rank, flag in enumerate(absent)})
    assert (response.error, response.all_absent) == ((), all(absent))


# --- the ranks disagree -------------------------------------------------------------------------------

DISAGREEMENTS = [
    (ask(), {"kind": Kind.BROADCAST, "root": 0}, "allreduce", "broadcast"),
    (ask(), {"dtype": "float64"}, "float32", "float64"),
    (ask(), {"device": "cuda"}, "cpu", "cuda"),
    (ask(), {"shape": (4, 1)}, "[4]", "[4, 1]"),
    (ask(), {"op": ReduceOp.MAX}, "sum", "max"),
    (ask(), {"prescale": 0.25}, "[1.0, 1.0]", "[0.25, 1.0]"),
    (ask(), {"postscale": 0.25}, "[1.0, 1.0]", "[1.0, 0.25]"),
    (ask(kind=Kind.REDUCESCATTER), {"op": ReduceOp.MAX}, "sum", "max"),
    (ask(kind=Kind.REDUCESCATTER), {"shape": (5,)}, "[4]", "[5]"),
    (ask(kind=Kind.BROADCAST, root=1), {"root": 2}, "1", "2"),
    (ask(kind=Kind.BROADCAST, root=1), {"shape": (3,)}, "[4]", "[3]"),
    (ask(kind=Kind.ALLGATHER, shape=(4, 3)), {"shape": (4, 5)}, "[2, [3]]|[2, (3,)]", "[2, [5]]|[2, (5,)]"),
    (ask(kind=Kind.ALLGATHER, shape=(4, 3)), {"shape": (4, 3, 1)}, "[2, [3]]|[2, (3,)]", "[3, [3, 1]]|[3, (3, 1)]"),
    (ask(kind=Kind.ALLTOALL, shape=(4, 3)), {"dtype": "int8"}, "float32", "int8"),
]


@pytest.mark.parametrize(("common", "change", "one", "other"), DISAGREEMENTS)
@pytest.mark.parametrize("odd", [0, 2, 4])
def test_a_disagreement_names_every_ranks_value(
    common: Request, change: dict[str, object], one: str, other: str, odd: int
) -> None:
    """The text has the tensor's name, and one line for each value with all the ranks that have it."""
    requests = {rank: replace(common, **change) if rank == odd else common for rank in range(5)}
    others = ", ".join(str(rank) for rank in range(5) if rank != odd)
    kind, text = respond(requests).error
    lines = text.splitlines()
    assert kind == "MismatchError"
    assert "'x'" in text
    assert any(f"  ranks {others}: {value}" in lines for value in one.split("|"))
    assert any(f"  rank {odd}: {value}" in lines for value in other.split("|"))


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLTOALL])
def test_the_first_dimension_may_differ(kind: Kind) -> None:
    """Ranks may send different numbers of rows with allgather and alltoall."""
    rows = {rank: ask(kind=kind, shape=(rank, 3), splits=(rank,)) for rank in range(3)}
    assert not respond(rows).error


def test_three_values_are_all_shown() -> None:
    """When every rank says something else, each has its own line."""
    text = respond({rank: ask(shape=(rank,)) for rank in range(3)}).error[1]
    assert {"  rank 0: [0]", "  rank 1: [1]", "  rank 2: [2]"} <= set(text.splitlines())


def test_a_disagreement_ends_only_its_own_name() -> None:
    """The other names go on, and the name itself can be used again afterwards."""
    coordinator = Coordinator(2)
    coordinator.take(Announce(0, (ask("bad", shape=(1,)), ask("good"))), 0.0)
    first, second = plain(coordinator.take(Announce(1, (ask("bad", shape=(2,)), ask("good"))), 0.0))
    assert (first.name, first.error[0]) == ("bad", "MismatchError")
    assert (second.name, second.error) == ("good", ())
    assert [response.error for response in plain(all_announce(coordinator, ask("bad")))] == [()]


# --- groups -------------------------------------------------------------------------------------------


@PROPERTY
@given(interleavings(), st.integers(1, 3), st.booleans())
def test_a_group_starts_together_or_not_at_all(
    case: tuple[int, list[tuple[int, list[str]]]], group_size: int, broken: bool
) -> None:
    """A group's members come one behind the other when the last is complete; one member's error is everybody's."""
    n, messages = case
    group = {f"t{i}" for i in range(group_size)} & {name for _, some in messages for name in some}
    coordinator = Coordinator(n)
    out: list[Item] = []
    left = Counter(dict.fromkeys(group, n))
    for rank, some in messages:
        before = len(out)
        for name in some:
            fields = {"group": "g", "group_size": len(group)} if name in group else {}
            shape = (5,) if broken and name == "t0" and rank == n - 1 else (4,)
            out += coordinator.take(Announce(rank, (ask(name, shape=shape, **fields),)), 0.0)
            left[name] -= 1
        ready = all(left[name] == 0 for name in group)
        came = [name for name in names(out[before:]) if name in group]
        assert not came or (ready and set(came) == group)
    responses = plain(out)
    places = [i for i, response in enumerate(responses) if response.name in group]
    assert places == list(range(places[0], places[0] + len(group)))
    errors = {responses[i].error for i in places}
    assert len(errors) == 1
    assert bool(errors.pop()) == (broken and n > 1)
    assert not any(response.error for response in responses if response.name not in group)
    assert coordinator.waiting() == {}


def test_a_groups_error_is_the_error_of_all_its_members() -> None:
    """When a rank that is gone misses one member, the members that were complete get the same error."""
    coordinator = Coordinator(2)
    a, b = ask("a", group="g", group_size=2), ask("b", group="g", group_size=2)
    coordinator.take(Announce(0, (a, b)), 0.0)
    assert coordinator.take(Announce(1, (a,)), 0.0) == []
    responses = plain(coordinator.take(Raised(1, "Traceback: broken"), 0.0))
    assert sorted(response.name for response in responses) == ["a", "b"]
    assert len({response.error for response in responses}) == 1
    assert responses[0].error[0] == "RankFailedError"
    assert coordinator.waiting() == {}


def test_two_groups_do_not_mix() -> None:
    """Members of different groups complete their own group only."""
    coordinator = Coordinator(1)
    a, b = ask("a", group="g", group_size=2), ask("b", group="h", group_size=2)
    assert coordinator.take(Announce(0, (a, b)), 0.0) == []
    assert names(coordinator.take(Announce(0, (ask("c", group="h", group_size=2),)), 0.0)) == ["b", "c"]
    assert names(coordinator.take(Announce(0, (ask("d", group="g", group_size=2),)), 0.0)) == ["a", "d"]


def test_the_answer_to_different_groups_does_not_depend_on_the_order() -> None:
    """Ranks that disagree about who belongs to a group get one answer per name, whoever comes first."""
    said = {
        0: (ask("a", group="g", group_size=2), ask("b", group="g", group_size=2)),
        1: (ask("a"), ask("b", group="g", group_size=3)),
    }
    answers = []
    for first in (0, 1):
        coordinator = Coordinator(2)
        out = coordinator.take(Announce(first, said[first]), 0.0)
        out += coordinator.take(Announce(1 - first, said[1 - first]), 0.0)
        answers.append(sorted((response.name, response.error) for response in plain(out)))
    assert answers[0] == answers[1]
    assert [name for name, _ in answers[0]] == ["a", "b"]


@st.composite
def groupings(draw: st.DrawFn) -> dict[str, tuple[str, int]]:
    """How one rank groups four tensors: name → (group, its size)."""
    labels = {name: draw(st.sampled_from(["", "g", "h"])) for name in "abcd"}
    members = {label: "".join(name for name in "abcd" if labels[name] == label) for label in "gh"}
    # As senders do it: a group's name says who is in it.
    return {
        name: (f"{label}.{members[label]}", len(members[label])) if label else ("", 0) for name, label in labels.items()
    }


@PROPERTY
@given(groupings(), groupings(), st.permutations([(rank, name) for rank in (0, 1) for name in "abcd"]))
def test_every_tensor_is_answered_however_the_ranks_group(
    mine: dict[str, tuple[str, int]], theirs: dict[str, tuple[str, int]], order: list[tuple[int, str]]
) -> None:
    """Tensors that all ranks have announced never wait in silence; where the ranks agree, nothing fails."""
    coordinator, out = Coordinator(2), []
    for rank, name in order:
        group, size = (mine, theirs)[rank][name]
        out += coordinator.take(Announce(rank, (ask(name, group=group, group_size=size),)), 0.0)
    failed = {response.name for response in plain(out) if response.error}
    assert sorted(names(out)) == list("abcd")
    assert {name for name in "abcd" if mine[name] != theirs[name]} <= failed
    assert mine != theirs or not failed


# --- a rank that never comes --------------------------------------------------------------------------


def only(out: list[Item]) -> tuple[str, str, str]:
    """(name, error class, error text) of the one response."""
    (response,) = plain(out)
    return (response.name, *response.error)


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
def test_a_rank_that_left_fails_what_waits_for_it(early: bool) -> None:
    """The error comes at once, whether the rank left before or after the others announced, and says who and what."""
    coordinator = Coordinator(3)
    if early:
        assert coordinator.take(Left(2), 0.0) == []
        out = coordinator.take(Announce(0, (ask("x"),)), 0.0)
    else:
        assert coordinator.take(Announce(0, (ask("x"),)), 0.0) == []
        out = coordinator.take(Left(2), 0.0)
    name, kind, text = only(out)
    assert (name, kind) == ("x", "ShutDownError")
    assert "Rank 2 has left" in text
    assert "'x'" in text
    assert "rank 0" in text


def test_what_a_rank_announced_before_it_left_still_completes() -> None:
    """Only what misses the rank fails; a name that it had announced goes on."""
    coordinator = Coordinator(2)
    coordinator.take(Announce(1, (ask("x"),)), 0.0)
    assert coordinator.take(Left(1), 0.0) == []
    (response,) = plain(coordinator.take(Announce(0, (ask("x"),)), 0.0))
    assert response.error == ()


def test_a_script_that_raised_fails_what_waits_for_it() -> None:
    """A final exception needs no grace: every name that misses the rank ends at once, with the traceback."""
    coordinator = Coordinator(3, grace_s=100)
    coordinator.take(Announce(0, (ask("x"), ask("y"), ask("z"))), 0.0)
    coordinator.take(Announce(1, (ask("z"),)), 0.0)
    responses = plain(coordinator.take(Raised(1, "Traceback ...\nKeyError: 'lr'\n"), 0.0))
    assert [response.name for response in responses] == ["x", "y"]
    for response in responses:
        kind, text = response.error
        assert kind == "RankFailedError"
        assert "Rank 1 raised" in text
        assert text.endswith("KeyError: 'lr'")
    assert coordinator.waiting() == {"z": [2]}


def test_the_first_reason_is_the_reason() -> None:
    """A rank that raised and then leaves, as every script does, is blamed for having raised."""
    coordinator = Coordinator(2)
    coordinator.take(Raised(1, "KeyError"), 0.0)
    coordinator.take(Left(1), 0.0)
    assert only(coordinator.take(Announce(0, (ask(),)), 0.0))[1] == "RankFailedError"


def test_a_failed_cell_is_given_grace() -> None:
    """Nothing fails before the grace is over; then what misses the rank does, with the cell's traceback."""
    coordinator = Coordinator(2, grace_s=0.5)
    coordinator.take(Announce(0, (ask(),)), 10.0)
    assert plain(coordinator.take(Raised(1, "ValueError: cell", final=False), 10.2)) == [
        Response("cell", Kind.RENUMBER, root=1)
    ]
    assert coordinator.undecided(10.3)
    assert coordinator.expire(10.69) == []
    name, kind, text = only(coordinator.expire(10.71))
    assert (name, kind) == ("x", "RankFailedError")
    assert "ValueError: cell" in text
    assert not coordinator.undecided(10.72)
    assert coordinator.expire(99.0) == []


@pytest.mark.parametrize("late", [True, False])
def test_a_failed_cell_that_is_heard_of_late_keeps_nobody_from_the_next(late: bool) -> None:
    """Both ranks are in a cell that the notebook has sent since, so what they submit belongs together."""
    coordinator = Coordinator(2)
    failed = Raised(1, "ValueError", final=False, failures=3)
    for rank in range(2):
        coordinator.take(Began(rank, True, 3), 0.0)
    coordinator.take(Began(0, True, 4), 1.0)
    if late:
        coordinator.take(Began(1, True, 4), 1.0)
    coordinator.take(failed, 1.1)
    coordinator.take(Announce(0, (ask(),)), 1.2)
    (response,) = plain(coordinator.take(Announce(1, (ask(),)), 1.3))
    assert (response.name, response.error[:1]) == ("x", () if late else ("MissingRanksError",))


def test_grace_counts_from_the_later_of_cell_and_tensor() -> None:
    """A tensor that is submitted long after the cell failed gets the whole grace, too."""
    coordinator = Coordinator(2, grace_s=0.5)
    coordinator.take(Raised(1, "ValueError", final=False), 0.0)
    assert not coordinator.undecided(0.1)
    assert coordinator.take(Announce(0, (ask(),)), 100.0) == []
    assert coordinator.undecided(100.2)
    assert coordinator.expire(100.4) == []
    assert only(coordinator.expire(100.6))[1] == "RankFailedError"


@pytest.mark.parametrize("event", [Began(1), Announce(1, (ask("other"),))], ids=["next cell", "announcement"])
def test_a_rank_that_comes_back_is_waited_for(event: Began | Announce) -> None:
    """The next cell of a rank, or an announcement of it, ends the grace: nothing fails any more."""
    coordinator = Coordinator(2, grace_s=0.5)
    coordinator.take(Announce(0, (ask(),)), 0.0)
    coordinator.take(Raised(1, "ValueError", final=False), 0.0)
    assert coordinator.take(event, 0.1) == []
    assert coordinator.expire(100.0) == []
    assert names(coordinator.take(Announce(1, (ask(),)), 100.0)) == ["x"]


def test_a_lost_rank_ends_the_job_once() -> None:
    """One PeerLostError for everybody, with the reason and what was in flight; a second loss says nothing more."""
    coordinator = Coordinator(3)
    coordinator.take(Announce(0, (ask("x"), ask("y"))), 0.0)
    (response,) = plain(coordinator.take(Lost(1, "it was killed"), 0.0))
    assert (response.kind, response.error[0]) == (Kind.SHUTDOWN, "PeerLostError")
    assert all(word in response.error[1] for word in ("Rank 1", "it was killed", "x, y", "Start the job again."))
    assert "shutdown()" not in response.error[1]  # where a process is gone it would wait for it, too
    assert coordinator.take(Lost(2, "it was killed"), 0.0) == []
    assert [
        item
        for rank in range(3)
        for item in coordinator.take(Left(rank), 0.0)
        if response_of(item).kind is Kind.SHUTDOWN
    ] == []


def test_where_the_data_plane_broke_no_rank_is_called_lost() -> None:
    """The rank's own words, once, and what was in flight; what other ranks say of it afterwards adds nothing."""
    coordinator = Coordinator(3)
    coordinator.take(Announce(0, (ask("x"),)), 0.0)
    (response,) = plain(coordinator.take(Broke(1, "Rank 1 lost rank 2 in the data plane: reset."), 0.0))
    assert (response.kind, response.error[0]) == (Kind.SHUTDOWN, "PeerLostError")
    assert response.error[1].startswith("Rank 1 lost rank 2 in the data plane: reset. In flight: ")
    assert coordinator.take(Broke(2, "Rank 2 lost rank 1 in the data plane: reset."), 0.0) == []


def test_a_rank_that_said_good_bye_cannot_be_lost() -> None:
    """The end of a process whose engine had ended is no loss."""
    coordinator = Coordinator(2)
    coordinator.take(Left(1), 0.0)
    coordinator.take(Left(1, clean=False), 0.0)
    assert coordinator.take(Lost(1, "it has ended"), 0.0) == []


def test_a_rank_that_only_wants_to_leave_can_be_lost() -> None:
    """Its engine works for the others until it ends: what waits for it is told."""
    coordinator = Coordinator(2)
    coordinator.take(Announce(1, (Request("x", Kind.BARRIER),)), 0.0)
    coordinator.take(Left(1), 0.0)
    (response,) = coordinator.responses(coordinator.take(Lost(1, "it was killed"), 0.0))
    assert response.error[0] == "PeerLostError"


def test_what_a_rank_leaves_behind_fails() -> None:
    """Its engine has ended, and others had not announced yet what it had: they get an error, and no sum without it."""
    coordinator = Coordinator(2)
    coordinator.take(Announce(1, (Request("x", Kind.BARRIER),)), 0.0)
    coordinator.take(Left(1), 0.0)
    (response,) = coordinator.responses(coordinator.take(Left(1, clean=False), 0.0))
    assert response.error[0] == "ShutDownError"
    assert "Rank 1 has left the job while 'x' was in flight" in response.error[1]


@PROPERTY
@given(st.integers(1, 5), st.data())
def test_all_leave_together(n: int, data: st.DataObject) -> None:
    """When the last rank leaves, and not before, exactly one good SHUTDOWN comes, however often a rank says it."""
    coordinator = Coordinator(n)
    order = data.draw(st.permutations([rank for rank in range(n) for _ in range(2)]))
    left: set[int] = set()
    ends = 0
    for rank in order:
        out = plain(coordinator.take(Left(rank), 0.0))
        left.add(rank)
        ends += len(out)
        assert all(response.kind is Kind.SHUTDOWN and not response.error for response in out)
        assert ends == (len(left) == n)


def test_a_beat_changes_nothing() -> None:
    """Signs of life are not the coordinator's business."""
    coordinator = Coordinator(2, grace_s=0.0)
    coordinator.take(Announce(0, (ask(),)), 0.0)
    coordinator.take(Began(1), 0.0)
    assert coordinator.take(Beat(1, "host", 1), 0.0) == []
    assert coordinator.waiting() == {"x": [1]}


@PROPERTY
@given(interleavings(), st.data())
def test_every_submission_ends_when_a_rank_fails(
    case: tuple[int, list[tuple[int, list[str]]]], data: st.DataObject
) -> None:
    """Wherever in the job a script raises, all that the other ranks have submitted or submit later is answered."""
    n, messages = case
    victim, moment = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, len(messages)))
    events = [Announce(rank, tuple(map(ask, some))) for rank, some in messages]
    coordinator, flying = Coordinator(n), Counter[tuple[int, str]]()
    for event in [*events[:moment], Raised(victim, "KeyError"), *(e for e in events[moment:] if e.rank != victim)]:
        if isinstance(event, Announce):
            flying.update((event.rank, item.name) for item in event.items)
            event = replace(event, seen=coordinator.number)
        for response in plain(coordinator.take(event, 0.0)):
            for rank in range(n):
                del flying[rank, response.name]
    assert coordinator.waiting() == {}
    assert {rank for rank, _ in flying} <= {victim}


def test_a_rank_that_joined_does_not_touch_sets_without_it() -> None:
    """After rank 2's join() the ranks 0 and 1 gather in a set of theirs: nothing asks for rank 2."""
    coordinator = Coordinator(3)
    new = Request("set", Kind.ADD_SET, splits=(0, 1))
    for rank in range(3):
        out = coordinator.take(Announce(rank, (new,)), 0.0)
    pset = response_of(out[0]).root
    coordinator.take(Announce(2, (Request("join.join", Kind.JOIN),)), 1.0)
    gather = Request("x", Kind.ALLGATHER, "float32", (2,), process_set=pset)
    assert coordinator.take(Announce(0, (gather,)), 2.0) == []
    (response,) = plain(coordinator.take(Announce(1, (gather,)), 2.0))
    assert (response.name, response.error, response.rows) == ("x", (), (2, 2))


def test_what_a_silent_rank_has_seen_is_forgotten() -> None:
    """A rank that announces nothing says by its signs of life what it has read, so evicted names do not pile up."""
    coordinator = Coordinator(3, cache_capacity=2)
    new = Request("set", Kind.ADD_SET, splits=(0, 1))
    for rank in range(3):
        out = coordinator.take(Announce(rank, (new,)), 0.0)
    pset = response_of(out[0]).root
    for number in range(1, 201):
        one = Request(f"x{number}", Kind.ALLREDUCE, "float32", (1,), process_set=pset)
        for rank in range(2):
            coordinator.take(Announce(rank, (one,), seen=coordinator.number), float(number))
        coordinator.take(Beat(2, seen=coordinator.number), float(number))
    assert len(coordinator.cache._known) <= 5


def test_a_broken_state_is_told_with_the_names_story() -> None:
    """Between two events no name waits that all have announced; validate() says so, and who has announced what."""
    coordinator = CountingCoordinator(2)
    coordinator.take(Announce(0, (ask("x"),)), now=1.5)
    coordinator.validate()
    assert coordinator.waiting.story("x").startswith("'x' has waited since 1.5 s for [1]: rank 0 allreduce")
    assert coordinator.waiting.story("y") == "'y' does not wait: nobody has announced it, or it is decided."
    coordinator.waiting[0, "x"].requests[1] = ask("x")
    with pytest.raises(AssertionError, match=r"All have announced it, and it waits. 'x' .* rank 0 .* rank 1"):
        coordinator.validate()


RATES: list[tuple[list[tuple[float, ...]], list[str]]] = [
    ([(0.1,), (0.1,)], []),
    ([(0.1,), (0.1000000001,)], []),
    ([(0.0,), (1e-18,)], []),
    ([(0.1,), ()], []),
    ([(0.1, 0.2), (0.1000000001, 0.2, 0.2000000001)], []),
    ([(0.1,), (0.1001,)], ["  rank 0: 0.1", "  rank 1: 0.1001"]),
    ([(0.1,), (0.1, 0.2)], ["  rank 0: no other", "  rank 1: 0.2"]),
    ([(0.1, 0.2), (0.1, 0.2), (0.2, 0.3)], ["  ranks 0, 1: 0.1", "  rank 2: 0.3"]),
    ([(1, 2, 3, 4, 5, 6, 7, 8), (8,)], ["  rank 0: 1, 2, 3, 4, 5, 6, …", "  rank 1: no other"]),
]


@pytest.mark.parametrize(("rates", "lines"), RATES)
def test_learning_rates_are_compared_where_all_tell_them(rates: list[tuple[float, ...]], lines: list[str]) -> None:
    """But for rounding; the text has of each rank what not all have."""
    response = respond({rank: ask(progress=tuple(("lr", rate) for rate in each)) for rank, each in enumerate(rates)})
    assert bool(response.error) == bool(lines)
    assert not lines or response.error[1].splitlines()[2:-1] == lines
