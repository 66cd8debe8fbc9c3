"""The bytes on the wire: what is encoded is decoded again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workbench.core.messages import Announce, Decision, Event, Kind, Left, Raised, ReduceOp, Request, Response
from workbench.errors import CollectiveError, MismatchError, PeerLostError
from workbench.runtime.control.codec import decode_decision, decode_event, encode_decision, encode_event
from workbench.runtime.events import Beat, Began, Blocked, Ended, Overdue, Stack

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
RANK = st.integers(0, 2**31)
COUNT = st.integers(0, 2**40)
COUNTS = st.lists(COUNT, max_size=4).map(tuple)
FACTOR = st.floats(allow_nan=False)

BOTH = {
    "name": st.text(),
    "kind": st.sampled_from(Kind),
    "dtype": st.text(max_size=8),
    "shape": COUNTS,
    "op": st.sampled_from(ReduceOp),
    "root": st.integers(-1, 2**31),
    "device": st.sampled_from(["cpu", "cuda"]),
    "prescale": FACTOR,
    "postscale": FACTOR,
    "process_set": COUNT,
}
REQUESTS = st.builds(
    Request,
    **BOTH,
    splits=COUNTS,
    group=st.text(max_size=8),
    group_size=COUNT,
    absent=st.booleans(),
    user=COUNTS,
    progress=st.lists(st.tuples(st.text(max_size=8), FACTOR), max_size=3).map(tuple),
)
RESPONSES = st.builds(
    Response,
    **BOTH,
    rows=COUNTS,
    all_absent=st.booleans(),
    error=st.one_of(st.just(()), st.tuples(st.text(), st.text())),
)
EVENTS = st.one_of(
    st.builds(Announce, rank=RANK, items=st.lists(st.one_of(REQUESTS, COUNT), max_size=4).map(tuple), seen=COUNT),
    st.builds(Raised, rank=RANK, traceback=st.text(), final=st.booleans()),
    st.builds(Began, rank=RANK),
    st.builds(Ended, rank=RANK),
    st.builds(Blocked, rank=RANK, waits=st.lists(st.tuples(st.integers(0, 9), st.text(), st.text())).map(tuple)),
    st.builds(Overdue, rank=RANK, process_set=COUNT, name=st.text(), limit_s=st.floats(0, 1e9)),
    st.builds(Stack, rank=RANK, text=st.text()),
    st.builds(Left, rank=RANK, clean=st.booleans()),
    st.builds(Beat, rank=RANK, host=st.text(), pid=COUNT),
)
IDS = st.lists(st.one_of(st.integers(0, 2**32 - 1), COUNT), max_size=6)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=8,
)
KINDS = {"Announce", "Raised", "Began", "Ended", "Blocked", "Overdue", "Stack", "Left", "Beat", "Lost", "Event", ""}


def is_typed(event: Event) -> bool:
    """Has every field of an event the type that the class says?"""
    match event:
        case Announce(int(), tuple(items), int()):
            return all(isinstance(item, int | Request) for item in items)
        case Raised(int(), str(), bool()) | Beat(int(), str(), int()) | Stack(int(), str()):
            return True
        case Began(int()) | Ended(int()) | Left(int(), bool()) | Overdue(int(), int(), str(), float()):
            return True
        case Blocked(int(), tuple(waits)):
            return all(tuple(map(type, wait)) == (int, str, str) for wait in waits)
    return False


@PROPERTY
@given(EVENTS)
def test_an_event_survives_the_wire(event: Event) -> None:
    """Decoding the bytes of an event gives an equal event."""
    assert decode_event(encode_event(event)) == event


@PROPERTY
@given(COUNT, st.lists(st.one_of(RESPONSES, COUNT), max_size=4), st.lists(COUNT), st.integers(0, 2**40))
def test_decisions_survive_the_wire(number: int, items: list[Response | int], evicted: list[int], new: int) -> None:
    """Decoding a message of rank 0 gives its number, its responses in order with their ids, and the void ids."""
    items = [replace(item, cache_id=new) if isinstance(item, Response) else item for item in items]
    decision = decode_decision(encode_decision(Decision(number, items, {}, evicted)))
    assert decision == Decision(number, items, {}, evicted)
    assert all(item.cache_id == new for item in decision.items if isinstance(item, Response))


def test_of_a_response_that_is_known_the_id_is_sent() -> None:
    """The ranks get the number; rank 0 itself keeps the response."""
    known = Response("x", Kind.BARRIER, cache_id=7, cached=True)
    assert encode_decision(Decision(1, [known])) == encode_decision(Decision(1, [7]))


@PROPERTY
@given(RANK, IDS, COUNT, st.lists(COUNT, max_size=2), st.data())
def test_ids_and_values_survive_the_wire(
    rank: int, ids: list[int], number: int, evicted: list[int], data: st.DataObject
) -> None:
    """Ids come back with the values of the eager ones, up and down, in the short form or not."""
    indices = st.integers(0, len(ids) - 1) if ids else st.nothing()
    values = data.draw(st.dictionaries(indices, st.binary(max_size=20)))
    event = Announce(rank, tuple(ids), number, values)
    assert decode_event(encode_event(event)) == event
    decision = Decision(number, ids, values, evicted)
    assert decode_decision(encode_decision(decision)) == decision


def test_ids_alone_have_a_short_form() -> None:
    """Only what consists of ids that fit into four bytes, with nothing evicted, is no JSON."""
    request = Request("x", Kind.BARRIER)
    short = [
        encode_event(Announce(1, (7, 2**32 - 1), 5)),
        encode_event(Announce(1, (7,), 5, {0: b"value"})),
        encode_decision(Decision(5, [7, 8])),
        encode_decision(Decision(5, [7], {0: b"value"})),
    ]
    long = [
        encode_event(Announce(1, (7, request), 5)),
        encode_event(Announce(1, (2**32,), 5)),
        encode_decision(Decision(5, [7, Response("x", Kind.BARRIER)])),
        encode_decision(Decision(5, [7], {}, [8])),
    ]
    assert all(message.startswith(b"\1") for message in short)
    assert all(json.loads(message) for message in long)


@PROPERTY
@given(IDS.filter(bool), st.binary(max_size=20), st.data())
def test_a_broken_short_form_is_no_event(ids: list[int], value: bytes, data: st.DataObject) -> None:
    """Cut short, made longer, or with a value for an id that is not there: ValueError and nothing else."""
    message = encode_event(Announce(1, tuple(i % 2**32 for i in ids), 5, {0: value}))
    end = data.draw(st.integers(1, len(message) - 1))
    foreign = encode_event(Announce(1, (7,), 5, {1: value}))
    for broken in (message[:end], message + b"!", foreign):
        with pytest.raises(ValueError, match="not an event"):
            decode_event(broken)


@PROPERTY
@given(st.binary(max_size=80))
def test_arbitrary_numbers_are_an_event_or_a_value_error(data: bytes) -> None:
    """Noise behind the mark of the short form is refused with ValueError, or is a well-formed announcement."""
    try:
        event = decode_event(b"\1" + data)
    except ValueError:
        return
    assert is_typed(event)
    assert set(event.values) <= set(range(len(event.items)))


@PROPERTY
@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_no_event(data: bytes) -> None:
    """Bytes that no rank made end in ValueError and nothing else."""
    with pytest.raises(ValueError, match="not an event"):
        decode_event(data)


@PROPERTY
@given(st.lists(JSON, max_size=5), st.sampled_from(sorted(KINDS)), st.one_of(RANK, JSON))
@example([[], float("inf")], "Announce", 0)
@example([[], float("nan")], "Announce", 0)
@example([[]], "Announce", 0)
@example([[["x"]], 0], "Announce", 0)
@example([5, True], "Raised", 0)
@example([["host"], "pid"], "Beat", 0)
def test_arbitrary_json_is_an_event_or_a_value_error(rest: list[object], kind: str, rank: object) -> None:
    """JSON that looks like an event is refused with ValueError, or its fields have the types that the classes say."""
    try:
        event = decode_event(json.dumps([kind, rank, *rest]).encode())
    except ValueError:
        return
    assert is_typed(event)


@PROPERTY
@given(REQUESTS, st.integers(0, len(fields(Request)) - 1), JSON)
@example(Request("x", Kind.ALLREDUCE), 3, [float("inf")])
@example(Request("x", Kind.ALLREDUCE), 7, 10**400)
@example(Request("x", Kind.ALLREDUCE), 9, float("inf"))
@example(Request("x", Kind.ALLREDUCE), 17, None)
@example(Request("x", Kind.ALLREDUCE), 17, [0.1, [float("inf")]])
def test_a_request_with_one_foreign_field_is_one_or_a_value_error(request: Request, index: int, junk: object) -> None:
    """A request with something else in one place is refused with ValueError, or is a well-formed request again."""
    plain = json.loads(encode_event(Announce(0, (request,))))
    plain[2][0][index : index + 1] = [junk]  # the last one is there for few
    try:
        event = decode_event(json.dumps(plain).encode())
    except ValueError:
        return
    assert decode_event(encode_event(event)) == event or "NaN" in repr(junk) or "nan" in repr(junk)
    assert is_typed(event)


@PROPERTY
@given(JSON)
def test_json_of_another_form_is_no_event(value: object) -> None:
    """JSON that is no list of a kind, a rank and more ends in ValueError."""
    with pytest.raises(ValueError, match="not an event"):
        decode_event(json.dumps(value).encode())


def test_deep_nesting_is_no_event() -> None:
    """Brackets without end cannot exhaust the stack."""
    with pytest.raises(ValueError, match="not an event"):
        decode_event(b"[" * 100_000)


def test_a_lost_rank_is_never_on_the_wire() -> None:
    """No rank can declare another lost: only rank 0's own watch can."""
    with pytest.raises(ValueError, match="not an event"):
        decode_event(b'["Lost",1,"because I say so"]')


def test_a_steady_step_costs_a_few_bytes() -> None:
    """A tensor that was negotiated before costs less than eight bytes each way."""
    ids = tuple(range(1000, 2000))
    assert len(encode_event(Announce(0, ids, 12345))) < 8 * len(ids)
    assert len(encode_decision(Decision(12345, list(ids)))) < 8 * len(ids)


def test_an_error_keeps_its_class_and_text() -> None:
    """The error of a response is raised with the class of its name; an unknown name becomes the base class."""
    for name, kind in (("MismatchError", MismatchError), ("PeerLostError", PeerLostError), ("Other", CollectiveError)):
        error = Response("x", Kind.BARRIER, error=(name, "text")).exception()
        assert type(error) is kind
        assert str(error) == "text"
    assert Response("x", Kind.BARRIER).exception() is None
