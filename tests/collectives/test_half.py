"""float16 arithmetic: the bits of numpy's, for all values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.collectives.half import in_float32
from workbench.collectives.reduction import scale

EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def bits(values: np.ndarray) -> np.ndarray:
    """A NaN is a NaN."""
    return np.where(np.isnan(values), np.uint16(0x7E00), values.view(np.uint16))


@pytest.mark.parametrize("ufunc", [np.add, np.multiply], ids=["add", "multiply"])
@pytest.mark.parametrize("seed", range(4))
def test_two_arrays_have_the_bits_of_numpy(ufunc: Callable[..., Any], seed: int) -> None:
    """All 65,536 values, each with itself, with one beside it and with random ones."""
    others = [EVERY, np.roll(EVERY, 1), np.random.default_rng(seed).permutation(EVERY)]
    for other in others:
        with np.errstate(all="ignore"):
            theirs, ours = ufunc(EVERY, other), np.empty_like(EVERY)
            in_float32(ufunc, EVERY, other, out=ours)
        assert np.array_equal(bits(ours), bits(theirs))


@pytest.mark.parametrize("number", [0.5, 1 / 3, 2.0**-10, 3.0, 60000.0])
@pytest.mark.parametrize("ufunc", [np.multiply, np.divide], ids=["multiply", "divide"])
def test_a_factor_is_rounded_once(ufunc: Callable[..., Any], number: float) -> None:
    """As numpy rounds the float32 result."""
    with np.errstate(all="ignore"):
        theirs, ours = ufunc(EVERY.astype(np.float32), np.float32(number)).astype(np.float16), EVERY.copy()
        in_float32(ufunc, ours, np.float32(number), out=ours)
    assert np.array_equal(bits(ours), bits(theirs))


def test_every_float32_between_two_halves_is_rounded_to_the_nearest_even() -> None:
    """On, just beside, and halfway between all subnormal and many normal values: the product with 1 rounds nothing."""
    low = EVERY[:0x7BFF].astype(np.float32)
    middle = (low + EVERY[1:0x7C00].astype(np.float32)) / 2
    for values in (middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(1e9))):
        for sign in (1, -1):
            ours = np.zeros(len(values), np.float16)
            for start in range(0, len(values), 1 << 14):
                part = slice(start, start + (1 << 14))
                given = np.ascontiguousarray(sign * values[part])
                in_float32(lambda x, y, out, g=given: _give(g, out), ours[part], np.float32(1), out=ours[part])
            assert np.array_equal(ours.view(np.uint16), (sign * values).astype(np.float16).view(np.uint16))


def _give(given: np.ndarray, out: np.ndarray) -> np.ndarray:
    out[...] = given[: len(out)]
    return out


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 512])
def test_an_average_has_the_bits_of_the_quotient(divisor: int) -> None:
    """In place, also of an array that is empty, has dimensions, or has one value."""
    for values in (EVERY, EVERY[:0], EVERY[:1], EVERY[:6].reshape(2, 3)):
        ours = values.copy()
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scale(ours, "float16", 1.0, divisor)
            theirs = (values.astype(np.float32) / np.float32(divisor)).astype(np.float16)
        assert np.array_equal(bits(ours), bits(theirs))
