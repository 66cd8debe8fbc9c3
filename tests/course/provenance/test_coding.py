"""Coded numbers tell where they come from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from workbench.course.provenance.coding import Code


def test_every_sum_is_read_back() -> None:
    """Random multiplicities, up to what a digit holds, of random pairs of rank and chunk."""
    for n, chunks in [(1, 1), (2, 2), (3, 3), (4, 4), (8, 1)]:
        for backwards in [False, True]:
            code, random = Code(n, chunks, backwards), np.random.default_rng([n, chunks])
            for _ in range(100):
                pairs = [(int(random.integers(n)), int(random.integers(chunks))) for _ in range(3)]
                times = Counter(pairs)
                total = sum(np.full(2, code.number(*pair)) for pair in pairs)
                assert code.read(total) == times


def test_an_array_is_cut_as_numpy_cuts_it() -> None:
    """Each piece of np.array_split is one chunk, also where the length cannot be divided."""
    code = Code(3, 3)
    for length in (3, 7, 8):
        for rank in range(3):
            for chunk, piece in enumerate(np.array_split(code.array(rank, length), 3)):
                assert code.read(piece) == {(rank, chunk): 1}


def test_what_is_no_sum_is_not_read() -> None:
    """Fractions, negative numbers, mixtures and other objects are None."""
    for value in [
        None,
        "text",
        [1.0],
        np.array([]),
        np.array([1.0, 2.0]),
        np.array([0.5]),
        np.array([-1.0]),
        np.array([np.nan]),
    ]:
        assert Code(2, 2).read(value) is None


def test_too_many_pairs_are_refused() -> None:
    """Rather than read wrongly."""
    with pytest.raises(ValueError, match="7 ranks with 7 chunks each"):
        Code(7, 7)
