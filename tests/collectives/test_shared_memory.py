"""Reductions across arrays that all ranks can write to, played by one thread: rank after rank does its chunk."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import quick

from workbench.collectives.reduction import Reduction, fold, narrow, wire_dtype
from workbench.collectives.ring import chunk_lengths
from workbench.collectives.shared_memory import BLOCK_BYTES, blocks, reduce_across, reduce_into

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
DTYPES = ["float32", "float64", "bfloat16", "float16", "int32", "uint8"]


def lengths_of(dtype: str) -> list[int]:
    """Around the limit of a block, and so short that some chunks are empty."""
    most = BLOCK_BYTES // wire_dtype(dtype).itemsize
    return [0, 1, 2, 3, 5, most - 1, most, most + 1, 2 * most + 1]


def drawn(rank: int, length: int, dtype: str) -> np.ndarray:
    """A rank's data, for which the order of additions matters."""
    dice = np.random.default_rng(rank)
    values = dice.normal(size=length) * 2.0 ** dice.integers(-6, 6, length)
    if dtype == "bfloat16":
        return narrow(values.astype(np.float32))
    return (100 * np.abs(values)).astype(dtype) if "int" in dtype else values.astype(dtype)


def reduced(arrays: list[np.ndarray], reduction: Reduction) -> bytes:
    """The whole arrays, one after the other."""
    out = np.empty_like(arrays[0])
    with np.errstate(over="ignore"):
        fold(arrays, reduction, out)
    return out.tobytes()


def chunks(length: int, n: int) -> list[tuple[int, int]]:
    """(start, stop) by rank."""
    ends = np.cumsum([0, *chunk_lengths(length, n)]).tolist()
    return [*itertools.pairwise(ends)]


@pytest.mark.parametrize("n", quick([1, 2, 3, 4], 1, 3))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_rank_gets_the_serial_result(dtype: str, n: int) -> None:
    """When all ranks have done their chunks, in any order, all arrays hold the bits of the serial reduction."""
    for length in lengths_of(dtype):
        for reduction in (Reduction("sum", dtype), Reduction("average", dtype, 2.0, 0.5, n), Reduction("max", dtype)):
            arrays = [drawn(rank, length, dtype) for rank in range(n)]
            expected = reduced(arrays, reduction)
            for start, stop in np.random.default_rng(length).permutation(chunks(length, n)).tolist():
                with np.errstate(over="ignore"):
                    reduce_across(arrays, start, stop, reduction)
            assert all(array.tobytes() == expected for array in arrays), (length, reduction)


@pytest.mark.parametrize("n", quick([1, 2, 3, 4], 1, 3))
@pytest.mark.parametrize("prescale", [1.0, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_part_is_reduced_into_one_rank_s_array(dtype: str, prescale: float, n: int) -> None:
    """Reduce-scatter: each rank's part has the serial bits in its own array, and nothing else has changed anywhere."""
    for length in lengths_of(dtype):
        arrays = [drawn(rank, length, dtype) for rank in range(n)]
        reduction = Reduction("average", dtype, prescale, divisor=n)
        expected = np.frombuffer(reduced(arrays, reduction), wire_dtype(dtype))
        wanted = [array.copy() for array in arrays]
        for rank, (start, stop) in enumerate(chunks(length, n)):
            wanted[rank][start:stop] = expected[start:stop]
            with np.errstate(over="ignore"):
                reduce_into(arrays[rank][start:stop], arrays, start, reduction)
        assert [array.tobytes() for array in arrays] == [array.tobytes() for array in wanted], length


@PROPERTY
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8]))
def test_blocks_cover_a_chunk(start: int, length: int, itemsize: int) -> None:
    """Blocks follow one another from the first element to the last, and none is larger than the cache's share."""
    found = list(blocks(start, start + length, itemsize))
    assert [low for low, _ in found] == [start, *(high for _, high in found)][: len(found)]
    assert (found[-1][1] if found else start) == start + length
    assert all(0 < (high - low) * itemsize <= BLOCK_BYTES for low, high in found)
