"""What some ranks of a process set announce alone: messages between two of them, and sets that their members make."""

from __future__ import annotations

from dataclasses import replace

from coordination import Coordinator, Item, response_of

from workbench.core.messages import Announce, Kind, Left, Request, Response
from workbench.runtime.control.codec import decode_event, encode_event
from workbench.runtime.events import Blocked, Ended


def message(source: int, dest: int, tag: int = 0, number: int = 1) -> Request:
    """The request of sender and receiver."""
    name = f"send.{source}to{dest}.{tag}.{number}"
    return Request(name, Kind.SEND, "float32", (4,), root=source, ranks=(source, dest), splits=(0, tag))


def question(dest: int, tag: int = 0, number: int = 1) -> Request:
    """Who sends to ``dest``?"""
    return Request(f"source.anyto{dest}.{tag}.{number}", Kind.SOURCE, ranks=(dest,), splits=(0, tag))


def take(coordinator: Coordinator, rank: int, *requests: Request) -> list[Response]:
    """What comes out when a rank announces these."""
    out: list[Item] = coordinator.take(Announce(rank, requests), 0.0)
    return list(map(response_of, out))


def test_two_ranks_are_enough_for_a_message() -> None:
    """The third is not asked; both know who sends."""
    coordinator = Coordinator(3)
    assert take(coordinator, 2, message(2, 0)) == []
    (found,) = take(coordinator, 0, message(2, 0))
    assert (found.kind, found.root, found.rows, found.error) == (Kind.SEND, 2, (2, 0), ())


def test_sender_and_receiver_agree() -> None:
    """Another shape is an error on both."""
    coordinator = Coordinator(2)
    take(coordinator, 0, message(0, 1))
    (found,) = take(coordinator, 1, replace(message(0, 1), shape=(5,)))
    assert found.error[0] == "MismatchError"


def test_the_first_message_that_waits_is_the_answer() -> None:
    """Each is promised once, those with another tag and to others are not meant, and a question may come first."""
    coordinator = Coordinator(3)
    take(coordinator, 1, message(1, 0, tag=7), message(1, 2))
    assert take(coordinator, 0, question(0)) == []
    (found,) = take(coordinator, 2, message(2, 0))
    assert (found.kind, found.root) == (Kind.SOURCE, 2)
    assert take(coordinator, 0, question(0, number=2)) == [], "that message is promised"
    (one,) = take(coordinator, 1, message(1, 0))
    assert one.root == 1
    (received,) = take(coordinator, 0, message(2, 0))
    assert received.name == "send.2to0.0.1"
    (again,) = take(coordinator, 0, question(0, tag=7))
    assert again.root == 1


def test_nobody_is_left_who_could_send() -> None:
    """One rank that has left is no reason to give up; all others are."""
    coordinator = Coordinator(3)
    take(coordinator, 0, question(0))
    coordinator.take(Blocked(0, ((0, "source.anyto0.0.1", "in x.py, line 3"),)), 0.0)
    coordinator.take(Left(1), 0.0)
    assert coordinator.expire(10.0) == []
    (found,) = map(response_of, coordinator.take(Left(2), 10.0))
    assert found.error[0] == "ShutDownError"


def test_members_make_a_set_alone() -> None:
    """Others are told of it, for all ranks keep the same list of sets."""
    coordinator = Coordinator(3)
    ask = Request("add_process_set.1,2", Kind.ADD_SET, splits=(1, 2), ranks=(1, 2))
    assert take(coordinator, 2, ask) == []
    (made,) = take(coordinator, 1, ask)
    assert (made.root, made.rows) == (1, (1, 2))
    (inside,) = [*take(coordinator, 1, x := Request("x", Kind.BARRIER, process_set=1)), *take(coordinator, 2, x)]
    assert not inside.error


def test_a_circle_of_messages_ends() -> None:
    """Both send, and none receives."""
    coordinator = Coordinator(2)
    for rank in (0, 1):
        sent = message(rank, 1 - rank)
        take(coordinator, rank, sent)
        coordinator.take(Blocked(rank, ((0, sent.name, f"in x.py, line {rank}"),)), 0.0)
    found = [response_of(each) for each in coordinator.expire(10.0)]
    assert [each.error[0] for each in found] == ["MissingRanksError"] * 2
    assert all("line 0" in each.error[1] and "line 1" in each.error[1] for each in found)


def test_an_idle_sender_is_named() -> None:
    """The receiver waits for one rank alone."""
    coordinator = Coordinator(3)
    take(coordinator, 0, message(2, 0))
    coordinator.take(Blocked(0, ((0, "send.2to0.0.1", "in x.py, line 3"),)), 0.0)
    coordinator.take(Ended(1), 0.0)
    assert coordinator.expire(10.0) == []
    coordinator.take(Ended(2), 10.0)
    (found,) = map(response_of, coordinator.expire(20.0))
    assert "Rank 2 is idle" in found.error[1]


def test_a_message_in_a_set_that_is_removed() -> None:
    """It is an error, on whichever rank comes later."""
    coordinator = Coordinator(2)
    make = Request("add_process_set.0,1", Kind.ADD_SET, splits=(0, 1))
    gone = Request("remove_process_set.0,1", Kind.REMOVE_SET, splits=(0, 1), root=1)
    for ask in (make, gone):
        for rank in (0, 1):
            take(coordinator, rank, ask)
    (found,) = take(coordinator, 0, replace(message(0, 1), process_set=1))
    assert "was removed" in found.error[1]


def test_requests_arrive_as_they_were_sent() -> None:
    """With ranks, with progress, with both and with neither."""
    plain = Request("allreduce.x", Kind.ALLREDUCE, "float32", (4,))
    for request in (plain, message(0, 1), question(2), replace(message(0, 1), progress=(("steps", 2.0),))):
        event = Announce(1, (request,), seen=3)
        assert decode_event(encode_event(event)) == event
    told = replace(plain, progress=(("steps", 2.0), ("lr", 0.1)))
    assert decode_event(encode_event(Announce(0, (told,)))) == Announce(0, (told,))
