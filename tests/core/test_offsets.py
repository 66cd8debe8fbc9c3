"""Where arrays lie in shared memory: told in requests, answered for all ranks at once, and handed to the backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from coordination import Coordinator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.collectives.reduction import Reduction
from workbench.collectives.traffic import Traffic
from workbench.core.agreement import respond
from workbench.core.execute import execute
from workbench.core.handle import Handle
from workbench.core.messages import Announce, Decision, Kind, ReduceOp, Request, Response
from workbench.core.pending import Entry
from workbench.core.protocols import PlainAnnouncer
from workbench.runtime.control.codec import decode_decision, decode_event, encode_decision, encode_event
from workbench.runtime.steady.cache import CachingAnnouncer
from workbench.runtime.trace.timeline import Timeline
from workbench.transport.host.single import SingleLink
from workbench.transport.links import link_backend

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
PLACE = st.integers(-1, 2**47)


def ask(offset: int, kind: Kind = Kind.ALLREDUCE, **fields: Any) -> Request:
    """A request whose array lies there."""
    return Request("x", kind, "float32", (6,), offset=offset, **fields)


@PROPERTY
@given(st.lists(PLACE, min_size=1, max_size=5))
def test_offsets_survive_the_wire(offsets: list[int]) -> None:
    """A request's offset, and a response's offsets, come out of the bytes as they went in."""
    event = Announce(0, tuple(ask(offset) for offset in offsets))
    assert decode_event(encode_event(event)) == event
    response = Response("x", Kind.ALLREDUCE, "float32", (6,), offsets=tuple(offsets))
    decision = Decision(1, [replace(response, cache_id=3)])
    assert decode_decision(encode_decision(decision)) == decision
    assert decode_decision(encode_decision(decision)).items[0].cache_id == 3


@PROPERTY
@given(st.lists(PLACE, min_size=1, max_size=5), st.sampled_from([Kind.ALLREDUCE, Kind.REDUCESCATTER]))
def test_all_offsets_or_none(offsets: list[int], kind: Kind) -> None:
    """The response has every rank's place in the order of the ranks, or none if one rank's array lies elsewhere."""
    response = respond({rank: ask(offset, kind) for rank, offset in enumerate(offsets)})
    assert not response.error
    assert response.offsets == (() if -1 in offsets else tuple(offsets))


def test_a_rank_that_has_joined_has_no_place() -> None:
    """When a rank contributes zeros of which it has no array, nobody's place is told."""
    coordinator = Coordinator(2, cache_capacity=0)
    coordinator.take(Announce(1, (Request("join.join", Kind.JOIN),)), 0.0)
    [response] = coordinator.take(Announce(0, (ask(4096),)), 0.0)
    assert not response.error
    assert response.offsets == ()


def test_an_absent_rank_has_no_place() -> None:
    """Neither has one whose gradient is missing in this step."""
    requests = {0: ask(4096), 1: replace(ask(-1), absent=True)}
    assert respond(requests).offsets == ()


def test_another_place_is_another_request() -> None:
    """What is remembered about a name does not hold for an array in another place: it is announced in full."""
    rank = CachingAnnouncer(PlainAnnouncer(0), 0)
    rank.announce([Entry(ask(4096), None, None, Handle("x"))], seen=0)
    rank.read(Decision(1, [Response("x", Kind.ALLREDUCE, "float32", (6,), offsets=(4096, 0), cache_id=7)]))
    for offset, announced in ((4096, 7), (-1, ask(-1)), (0, ask(0)), (8192, ask(8192))):
        assert rank.announce([Entry(ask(offset), None, None, Handle("x"))], seen=1).items == (announced,)


# --- execute ------------------------------------------------------------------------------------------


class Spy:
    """Notes what it is asked to reduce."""

    def __init__(self) -> None:
        self.backend = replace(link_backend(SingleLink()), collectives=self)  # type: ignore[arg-type]
        self.asked: list[tuple[np.ndarray, tuple[int, ...]]] = []

    def allreduce(self, array: np.ndarray, reduction: Reduction, offsets: Sequence[int], source: Any) -> Traffic:
        self.asked.append((array, tuple(offsets)))
        return Traffic()

    def reducescatter(
        self, array: np.ndarray, lengths: Sequence[int], reduction: Reduction, offsets: Sequence[int] = ()
    ) -> Traffic:
        self.asked.append((array, tuple(offsets)))
        return Traffic()


def run(kind: Kind, source: np.ndarray, target: np.ndarray | None, offsets: tuple[int, ...]) -> tuple[Any, Spy]:
    """What execute() returns for one tensor, and what it asked of the backend."""
    spy = Spy()
    response = Response("x", kind, "float32", source.shape, ReduceOp.SUM, rows=(len(source),), offsets=offsets)
    entry = Entry(Request("x", kind, "float32", source.shape), source, target, Handle("x"))
    return execute([response], [entry], spy.backend, Timeline())[0], spy


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 6)])
@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.REDUCESCATTER])
@pytest.mark.parametrize("offsets", [(), (4096,)])
def test_in_place_nothing_is_copied(offsets: tuple[int, ...], kind: Kind, shape: tuple[int, ...]) -> None:
    """The backend gets the caller's own memory as one dimension, with the offsets, and the caller gets its array."""
    array = np.arange(6, dtype=np.float32).reshape(shape)
    result, spy = run(kind, array, array, offsets)
    [(asked, told)] = spy.asked
    assert result is array
    assert (asked.shape, told) == ((6,), offsets)
    assert asked.ctypes.data == array.ctypes.data


def test_without_a_target_the_source_is_left_alone() -> None:
    """A reduce-scatter of an array that is to be kept works on a copy, which lies nowhere in particular."""
    array = np.arange(6, dtype=np.float32)
    result, spy = run(Kind.REDUCESCATTER, array, None, ())
    [(asked, told)] = spy.asked
    assert told == ()
    assert not np.may_share_memory(asked, array)
    assert not np.may_share_memory(result, array)
    assert result.tolist() == array.tolist()
