"""The layout of buckets: which gradients share an array. Shared by all frameworks; knows no tensors.

A *bucket* is one array in the backend's memory (:mod:`workbench.training.memory`). Each gradient is a view of a part
of it, so a bucket is reduced as one tensor, under one name, without being packed or unpacked. In the first step there
are no buckets: it records the order in which gradients become ready, and the buckets use this order.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_ALIGNED_BYTES = 64  # a gradient begins on a cache line


@dataclass(frozen=True)
class Piece:
    """One gradient.

    Args:
        name: the same on every rank.
        length: elements.
        dtype: their type's name.
        layout: order of its elements in memory (strides or shape); must be equal on all ranks.
    """

    name: str
    length: int
    dtype: str
    layout: str = ""


@dataclass(frozen=True)
class Bucket:
    """Gradients that share an array.

    Args:
        pieces: in the order of the array.
        starts, length: where each begins, and the length of the array; in elements.
        flags: where the flags begin, one element per piece: 1 where this rank has the gradient, 0 where it has not.
            They are reduced with the rest, so afterwards a flag is 0 only if no rank has it.
    """

    pieces: tuple[Piece, ...]
    starts: tuple[int, ...]
    flags: int
    length: int

    @property
    def dtype(self) -> str:
        return self.pieces[0].dtype

    @cached_property
    def name(self) -> str:
        """Equal on two ranks only if the buckets are."""
        first, last = self.pieces[0].name, self.pieces[-1].name
        return f"{len(self.pieces)} gradients, {first} to {last}, {zlib.crc32(repr(self.pieces).encode()):08x}"

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(piece.name for piece in self.pieces)

    def parts(self, array: Any) -> dict[str, Any]:
        """Each piece's part of an array or tensor with this layout, as a view."""
        pairs = zip(self.pieces, self.starts, strict=True)
        return {piece.name: array[start : start + piece.length] for piece, start in pairs}


def plan_by_place(pieces: Iterable[tuple[Hashable, int, Piece]], limit_bytes: int) -> list[Bucket]:
    """Fill buckets; the pieces of one lie in one place and have elements of one size.

    Args:
        pieces: (place, bytes of an element, piece), in the order of the model.
        limit_bytes: see :func:`plan_buckets`.
    """
    by_kind: dict[tuple[Hashable, int], list[Piece]] = {}
    for place, itemsize, piece in pieces:
        by_kind.setdefault((place, itemsize), []).append(piece)
    return [bucket for (_, itemsize), those in by_kind.items() for bucket in plan_buckets(those, limit_bytes, itemsize)]


def plan_buckets(pieces: Sequence[Piece], limit_bytes: int, itemsize: int = 4) -> list[Bucket]:
    """Fill buckets, from the last piece to the first: backward finishes gradients roughly in this order.

    Args:
        pieces: in the order of the model.
        limit_bytes: of a bucket; a larger piece has one of its own.
        itemsize: bytes of an element, for all pieces.

    Example:
        >>> pieces = [Piece("a", 10, "float32"), Piece("b", 100, "float32"), Piece("c", 5, "float32")]
        >>> for bucket in plan_buckets(pieces, limit_bytes=450):
        ...     print([piece.name for piece in bucket.pieces], bucket.starts, bucket.flags, bucket.length)
        ['c', 'b'] (0, 16) 128 130
        ['a'] (0,) 16 17
    """
    buckets: list[list[Piece]] = []
    open_buckets: dict[str, tuple[list[Piece], int]] = {}
    for piece in reversed(pieces):
        bucket, filled = open_buckets.get(piece.dtype, ([], 0))
        if not bucket or filled + piece.length * itemsize > limit_bytes:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(piece)
        open_buckets[piece.dtype] = bucket, filled + piece.length * itemsize
    return [_bucket(bucket, _ALIGNED_BYTES // itemsize) for bucket in buckets]


def _bucket(pieces: list[Piece], aligned: int) -> Bucket:
    starts, end = [], 0
    for piece in pieces:
        starts.append(end)
        end += -(-piece.length // aligned) * aligned
    return Bucket(tuple(pieces), tuple(starts), end, end + len(pieces))
