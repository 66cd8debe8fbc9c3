"""16-bit arithmetic: the bits of numpy's, for all values, with torch's help and without."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.collectives import half
from workbench.collectives.half import in_float32
from workbench.collectives.pipeline import Half
from workbench.collectives.reduction import combine_for, narrow, scale, widen

EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.fixture(autouse=True, params=["torch", "numpy"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who does it; a process that has not imported torch does without."""
    if request.param == "torch":
        pytest.importorskip("torch")
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    return request.param  # type: ignore[no-any-return]


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


def test_torch_does_it_where_it_is_imported(by: str) -> None:
    """Arrays that it cannot take, such as those that must not be written, are left to numpy."""
    array, fixed = np.ones(5, np.float16), np.ones(5, np.float16)
    fixed.flags.writeable = False
    assert half.by_torch(np.add, array, array, array, "float16") is (by == "torch")
    assert not half.by_torch(np.divide, array, array, array, "float16")
    assert not half.by_torch(np.add, array, fixed, array, "float16")
    assert not half.by_torch(np.add, array[::2], array[::2], array[:3], "float16")
    assert list(in_float32(np.add, array, fixed, out=array)) == [3.0 if by == "torch" else 2.0] * 5


@pytest.mark.parametrize("ufunc", ["sum", "product"])
def test_two_arrays_of_bfloat16_are_rounded_once(ufunc: str) -> None:
    """All 65,536 values, each with itself and with random ones: the float32 result, to nearest even."""
    bits, random = EVERY.view(np.uint16), np.random.default_rng(0).permutation(EVERY.view(np.uint16))
    for other in (bits, random):
        ours = np.empty_like(bits)
        with np.errstate(all="ignore"):
            combine_for(ufunc, "bfloat16")(bits, other, out=ours)
            exact = {"sum": np.add, "product": np.multiply}[ufunc](widen(bits), widen(other))
        assert_nearest(ours, exact)


def test_float32_is_rounded_to_16_bits_and_back() -> None:
    """Random values of all sizes, those halfway between two, and what is no number; as bfloat16 and as float16."""
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1 << 32, 1 << 17, dtype=np.uint32).view(np.float32)
    values[::3] = (values[::3].view(np.uint32) & np.uint32(0xFFFF0000) | np.uint32(0x8000)).view(np.float32)
    with np.errstate(all="ignore"):
        assert_nearest(narrow(values), values)
        packed = Half("float16").pack(values)
        assert np.array_equal(bits(packed), bits(values.astype(np.float16)))
    for dtype in ("float16", "bfloat16"):
        wire, out = Half(dtype), np.empty_like(values)
        came = wire.pack(values)
        wire.unpack(came, out)
        assert np.array_equal(out, widen(came) if dtype == "bfloat16" else came.astype(np.float32), equal_nan=True)


def assert_nearest(found: np.ndarray, exact: np.ndarray) -> None:
    """The bits of a bfloat16 are those of the nearest float32 that has no lower half; of two, the even one."""
    number = np.isfinite(exact)
    low = exact.view(np.uint32).astype(np.int64) & 0xFFFF
    up = (low > 0x8000) | ((low == 0x8000) & (exact.view(np.uint32) >> 16 & 1 == 1))
    nearest = ((exact.view(np.uint32).astype(np.int64) >> 16) + up).astype(np.uint16)
    assert np.array_equal(found[number], nearest[number])
    assert np.array_equal(np.isnan(widen(found)), np.isnan(exact))
