"""What travels together, and the way into the fusion buffer and out of it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workbench.runtime.fusion import nbytes, pack, plan, unpack
from workbench.runtime.messages import Kind, ReduceOp, Response

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ITEMSIZE = {"int8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


# What a response may have that is different from most others.
CHANGES: list[dict[str, object]] = [
    {"kind": Kind.ALLGATHER},
    {"kind": Kind.BARRIER},
    {"dtype": "bfloat16"},
    {"dtype": "float16"},
    {"op": ReduceOp.AVERAGE},
    {"op": ReduceOp.ADASUM},
    {"device": "cuda"},
    {"prescale": 0.5},
    {"postscale": 0.5},
    {"process_set": 1},
    {"all_absent": True},
    {"error": ("MismatchError", "text")},
]


@st.composite
def responses(draw: st.DrawFn) -> list[Response]:
    """Mostly small allreduces of one sort, and now and then one that differs in something."""
    found = []
    for i in range(draw(st.integers(0, 12))):
        shape = tuple(draw(st.lists(st.integers(0, 8), max_size=2)))
        change = draw(st.one_of(st.just({}), st.sampled_from(CHANGES)))
        found.append(replace(Response(f"t{i}", Kind.ALLREDUCE, "float32", shape), **change))
    return found


def is_fusable(response: Response) -> bool:
    """Only an allreduce that moves something can share a buffer; Adasum weighs each tensor by itself."""
    moves = response.kind is Kind.ALLREDUCE and not response.error and not response.all_absent
    return moves and response.op is not ReduceOp.ADASUM


def size(response: Response) -> int:
    """Bytes on the wire, by hand."""
    return prod(response.shape) * ITEMSIZE[response.dtype]


@PROPERTY
@given(responses(), st.integers(0, 300))
def test_a_plan_keeps_its_promises(responses: list[Response], threshold: int) -> None:
    """Each response is in one batch; batches are of one sort, within the threshold, and in order of their first."""
    batches = plan(responses, threshold)
    assert sorted(r.name for batch in batches for r in batch) == sorted(r.name for r in responses)
    firsts = [responses.index(batch[0]) for batch in batches]
    assert firsts == sorted(firsts)
    for batch in batches:
        places = [responses.index(response) for response in batch]
        assert places == sorted(places)
        if len(batch) > 1:
            assert all(map(is_fusable, batch))
            assert len({replace(response, name="", shape=()) for response in batch}) == 1
            assert sum(map(size, batch)) <= threshold
    assert plan(list(responses), threshold) == batches


@PROPERTY
@given(responses(), st.integers(0, 300))
def test_a_plan_wastes_no_room(responses: list[Response], threshold: int) -> None:
    """A batch is only begun where the one before it of its sort had no room for the tensor."""
    filled: dict[Response, int] = {}
    for batch in plan(responses, threshold):
        if is_fusable(batch[0]):
            sort = replace(batch[0], name="", shape=())
            assert sort not in filled or filled[sort] + size(batch[0]) > threshold
            filled[sort] = sum(map(size, batch))


@PROPERTY
@given(responses())
def test_threshold_zero_turns_fusion_off(responses: list[Response]) -> None:
    """With threshold 0 everything that has a byte travels alone."""
    assert all(len(batch) == 1 or not sum(map(size, batch)) for batch in plan(responses, 0))


def test_bytes_are_those_on_the_wire() -> None:
    """A bfloat16 takes two bytes, a scalar one element, an empty tensor none."""
    for dtype, itemsize in ITEMSIZE.items():
        assert nbytes(Response("x", Kind.ALLREDUCE, dtype, (3, 5))) == 15 * itemsize
        assert nbytes(Response("x", Kind.ALLREDUCE, dtype, ())) == itemsize
        assert nbytes(Response("x", Kind.ALLREDUCE, dtype, (0, 5))) == 0


ARRAYS = st.lists(
    hnp.arrays(
        np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=st.integers(0, 99)
    ),
    max_size=5,
)


@PROPERTY
@given(ARRAYS, st.integers(0, 5))
def test_unpack_undoes_pack(sources: list[np.ndarray], spare: int) -> None:
    """Packed and unpacked again, every array of whatever shape is the same; what is behind them is not touched."""
    total = sum(source.size for source in sources)
    buffer = np.full(total + spare, -1, np.float32)
    pack(sources, [source.size for source in sources], buffer)
    np.testing.assert_array_equal(buffer[:total], np.concatenate([source.ravel() for source in sources] or [[]]))
    assert (buffer[total:] == -1).all()
    targets = [np.full_like(source, -2) for source in sources]
    unpack(buffer, targets)
    for source, target in zip(sources, targets, strict=True):
        np.testing.assert_array_equal(source, target)


def test_what_is_absent_is_packed_as_zeros() -> None:
    """None stands for zeros of the given length, also in a buffer that was used before."""
    buffer = np.full(6, 9.0)
    pack([None, np.array([1.0, 2.0]), None], [3, 2, 1], buffer)
    assert buffer.tolist() == [0, 0, 0, 1, 2, 0]
