"""What travels together, and the way into the fusion buffer and out of it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workbench.core.backend.memory import HOST
from workbench.core.fusion import layout, nbytes, plan
from workbench.core.messages import Kind, ReduceOp, Response

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


SHAPES = st.lists(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), min_size=1, max_size=5)


@PROPERTY
@given(SHAPES, st.sampled_from(sorted(ITEMSIZE)), st.sampled_from([1, 16]))
def test_parts_of_the_buffer(shapes: list[tuple[int, ...]], dtype: str, align: int) -> None:
    """Each tensor has a part of its size, none overlaps another, and each begins where it is asked to, close behind."""
    parts, length = layout([Response(str(i), Kind.ALLREDUCE, dtype, shape) for i, shape in enumerate(shapes)], align)
    assert [part.stop - part.start for part in parts] == [int(np.prod(shape)) for shape in shapes]
    assert all(part.start * ITEMSIZE[dtype] % align == 0 for part in parts)
    ends = [0, *(part.stop for part in parts)]
    assert all(0 <= part.start - end < align for end, part in zip(ends, parts, strict=False))
    assert length == ends[-1]


@PROPERTY
@given(SHAPES)
def test_copied_in_and_out_again(shapes: list[tuple[int, ...]]) -> None:
    """Packed and unpacked again, every array of whatever shape is the same; what lies between them is not touched."""
    sources = [np.full(shape, i + 1.0, np.float32) for i, shape in enumerate(shapes)]
    parts, length = layout([Response("x", Kind.ALLREDUCE, "float32", shape) for shape in shapes], align=16)
    buffer = np.full(length, -1, np.float32)
    HOST.copy([(source.reshape(-1), buffer[part]) for source, part in zip(sources, parts, strict=True)])
    assert (buffer == -1).sum() == length - sum(source.size for source in sources)
    targets = [np.zeros_like(source) for source in sources]
    HOST.copy([(buffer[part], target.reshape(-1)) for target, part in zip(targets, parts, strict=True)])
    for source, target in zip(sources, targets, strict=True):
        np.testing.assert_array_equal(source, target)


def test_what_is_absent_is_packed_as_zeros() -> None:
    """None stands for zeros of the given length, also in a buffer that was used before."""
    buffer = np.full(6, 9.0)
    HOST.copy([(None, buffer[:3]), (np.array([1.0, 2.0]), buffer[3:5]), (None, buffer[5:])])
    assert buffer.tolist() == [0, 0, 0, 1, 2, 0]
