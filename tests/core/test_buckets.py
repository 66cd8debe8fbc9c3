"""How gradients are put into buckets: each into one, in order, aligned, and under a name that tells any difference."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from workbench.core.buckets import Bucket, Piece, plan_buckets

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

LIMIT = st.sampled_from([1, 64, 100, 1000, 5000])
ITEMSIZE = st.sampled_from([2, 4, 8])


@st.composite
def pieces(draw: st.DrawFn, most: int = 12) -> list[Piece]:
    """Gradients of a model with different names."""
    lengths = draw(st.lists(st.integers(1, 400), min_size=1, max_size=most))
    dtypes = st.sampled_from(["float32", "int32"])
    return [Piece(f"layer{i}", length, draw(dtypes)) for i, length in enumerate(lengths)]


def spans(bucket: Bucket) -> list[tuple[int, int]]:
    """(start, end) of each piece in the array, and of the flags."""
    parts = [(start, start + piece.length) for piece, start in zip(bucket.pieces, bucket.starts, strict=True)]
    return [*parts, (bucket.flags, bucket.flags + len(bucket.pieces))]


@PROPERTY
@given(pieces(), LIMIT, ITEMSIZE)
def test_every_piece_is_in_one_bucket(model: list[Piece], limit: int, itemsize: int) -> None:
    """None is lost and none is twice, whatever the limit."""
    found = [piece for bucket in plan_buckets(model, limit, itemsize) for piece in bucket.pieces]
    assert sorted(found, key=lambda piece: piece.name) == sorted(model, key=lambda piece: piece.name)


@PROPERTY
@given(pieces(), LIMIT, ITEMSIZE)
def test_pieces_and_flags_lie_side_by_side(model: list[Piece], limit: int, itemsize: int) -> None:
    """They do not overlap, each piece begins on a cache line, the flags are last, and the array ends with them."""
    for bucket in plan_buckets(model, limit, itemsize):
        assert all(end <= start for (_, end), (start, _) in pairwise(spans(bucket)))
        assert all(start * itemsize % 64 == 0 for start in (*bucket.starts, bucket.flags))
        assert spans(bucket)[-1][1] == bucket.length
        assert sum(start - end for (_, end), (start, _) in pairwise(spans(bucket))) < len(model) * 64 // itemsize


@PROPERTY
@given(pieces(), LIMIT, ITEMSIZE)
def test_the_limit_is_kept(model: list[Piece], limit: int, itemsize: int) -> None:
    """A bucket is not larger than the limit, unless one piece alone is; and none had room for the next piece, too."""
    buckets = plan_buckets(model, limit, itemsize)
    sizes = [sum(piece.length for piece in bucket.pieces) * itemsize for bucket in buckets]
    assert all(size <= limit or len(bucket.pieces) == 1 for size, bucket in zip(sizes, buckets, strict=True))
    for dtype in ("float32", "int32"):
        alike = [(size, bucket) for size, bucket in zip(sizes, buckets, strict=True) if bucket.dtype == dtype]
        for (size, _), (_, following) in pairwise(alike):
            assert size + following.pieces[0].length * itemsize > limit


@PROPERTY
@given(pieces(), LIMIT)
def test_the_order_is_that_of_backward(model: list[Piece], limit: int) -> None:
    """Within a dtype pieces follow one another from the last of the model to the first; a bucket has one dtype."""
    buckets = plan_buckets(model, limit)
    for dtype in ("float32", "int32"):
        names = [piece.name for bucket in buckets if bucket.dtype == dtype for piece in bucket.pieces]
        assert names == [piece.name for piece in reversed(model) if piece.dtype == dtype]
    assert all({piece.dtype for piece in bucket.pieces} == {bucket.dtype} for bucket in buckets)
    firsts = [model.index(bucket.pieces[0]) for bucket in buckets]
    assert firsts == sorted(firsts, reverse=True)


@PROPERTY
@given(pieces(most=5), st.data())
def test_the_name_tells_any_difference(model: list[Piece], data: st.DataObject) -> None:
    """Two ranks whose buckets differ in a name, a length, a dtype, a layout, the order or the number never agree."""
    bucket = plan_buckets(model, 1 << 20)[0]
    at = data.draw(st.integers(0, len(bucket.pieces) - 1))
    piece = bucket.pieces[at]
    other = data.draw(
        st.sampled_from(
            [
                replace(piece, name=piece.name + "x"),
                replace(piece, length=piece.length + 1),
                replace(piece, dtype="float64"),
                replace(piece, layout="(1, 2)"),
            ]
        )
    )
    changed = (*bucket.pieces[:at], other, *bucket.pieces[at + 1 :])
    fewer = bucket.pieces[:at] + bucket.pieces[at + 1 :]
    turned = tuple(reversed(bucket.pieces))
    assert replace(bucket, pieces=changed).name != bucket.name
    assert len(bucket.pieces) == 1 or replace(bucket, pieces=turned).name != bucket.name
    assume(fewer)
    assert replace(bucket, pieces=fewer).name != bucket.name
    assert plan_buckets(model, 1 << 20)[0].name == bucket.name


def test_the_name_can_be_read() -> None:
    """It says how many gradients there are, and between which two."""
    bucket = plan_buckets([Piece("conv.weight", 9, "float32"), Piece("head.bias", 3, "float32")], 1000)[0]
    assert bucket.name.startswith("2 gradients, head.bias to conv.weight, ")


def test_no_gradient_is_no_bucket() -> None:
    """A model without parameters."""
    assert plan_buckets([], 1000) == []


@pytest.mark.parametrize("limit", [0, 1])
def test_a_tiny_limit(limit: int) -> None:
    """Then each gradient has a bucket of its own."""
    model = [Piece(name, 5, "float32") for name in "abc"]
    assert [[piece.name for piece in bucket.pieces] for bucket in plan_buckets(model, limit)] == [["c"], ["b"], ["a"]]
