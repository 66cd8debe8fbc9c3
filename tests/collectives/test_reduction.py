"""Element-wise reductions and scalings: bfloat16 against torch, integers against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from math import trunc

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workbench.collectives.reduction import combine_for, narrow, scale, widen, wire_dtype

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ALL_BITS = np.arange(1 << 16, dtype=np.uint16)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16"]


def same_floats(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal bits, where one NaN is as good as another."""
    both_nan = np.isnan(one) & np.isnan(other)
    return bool((both_nan | (one.view(np.uint32) == other.view(np.uint32))).all())


def test_widen_is_torchs_conversion() -> None:
    """All 65536 bit patterns of bfloat16 widen to the float32 that torch makes of them."""
    torch = pytest.importorskip("torch")
    theirs = torch.from_numpy(ALL_BITS.view(np.int16)).view(torch.bfloat16).float().numpy()
    assert same_floats(widen(ALL_BITS), theirs)


@pytest.mark.parametrize("low", [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_narrow_is_torchs_conversion(low: int) -> None:
    """float32 values on, just beside and halfway between all bfloat16 values are rounded as torch rounds them."""
    torch = pytest.importorskip("torch")
    values = (ALL_BITS.astype(np.uint32) << 16 | np.uint32(low)).view(np.float32)
    theirs = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert same_floats(widen(narrow(values)), widen(theirs))


def test_narrow_undoes_widen() -> None:
    """What bfloat16 can hold comes back bit by bit; a NaN comes back as a NaN."""
    back = narrow(widen(ALL_BITS))
    is_nan = np.isnan(widen(ALL_BITS))
    np.testing.assert_array_equal(back[~is_nan], ALL_BITS[~is_nan])
    assert np.isnan(widen(back[is_nan])).all()
    assert is_nan.sum() == 2 * 127


@pytest.mark.parametrize("op", ["sum", "min", "max", "product"])
def test_bfloat16_is_combined_as_torch_does(op: str) -> None:
    """A bfloat16 reduction has the bits of torch's: computed in float32 and rounded once."""
    torch = pytest.importorskip("torch")
    their = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "product": torch.mul}[op]
    one, other = (np.random.default_rng(seed).permutation(ALL_BITS) for seed in (1, 2))
    out = np.empty_like(one)
    with np.errstate(all="ignore"):
        combine_for(op, "bfloat16")(one, other, out=out)
    tensors = [torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16) for bits in (one, other)]
    theirs = their(*tensors).view(torch.int16).numpy().view(np.uint16)
    zeros = (widen(out) == 0) & (widen(theirs) == 0)  # min(-0, 0) may be either
    assert same_floats(widen(out[~zeros]), widen(theirs[~zeros]))


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", [0, 1, 1, 1]), ("max", [0, 1, 1, 1]), ("product", [0, 0, 0, 1]), ("min", [0, 0, 0, 1])]
)
def test_bool_has_or_and_and(op: str, expected: list[int]) -> None:
    """For bool, sum and max mean "or", product and min mean "and"."""
    out = np.empty(4, bool)
    combine_for(op, "bool")(np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool), out=out)
    assert out.tolist() == [bool(value) for value in expected]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 7, 8, 100, 127, 128, 200, 255, 256, 1000])
def test_every_byte_is_divided_exactly(dtype: str, divisor: int) -> None:
    """The average of 8-bit integers is cut towards zero, for all values and any number of ranks."""
    info = np.iinfo(dtype)
    values = np.arange(info.min, info.max + 1).astype(dtype)
    expected = [trunc(Fraction(int(value), divisor)) for value in values]
    scale(values, dtype, 1.0, divisor)
    assert values.tolist() == expected


@PROPERTY
@given(st.sampled_from(INTEGERS), st.integers(1, 64), st.data())
@example("int64", 2, None)
def test_integers_of_any_size_are_divided_exactly(dtype: str, divisor: int, data: st.DataObject | None) -> None:
    """Also where a float could not hold the value; the smallest and the largest included."""
    info = np.iinfo(dtype)
    drawn = data.draw(st.lists(st.integers(int(info.min), int(info.max)), max_size=5)) if data else []
    numbers = [*drawn, int(info.min), int(info.max), int(info.min) + 1, 0]
    array = np.array(numbers, dtype)
    scale(array, dtype, 1.0, divisor)
    assert array.tolist() == [trunc(Fraction(number, divisor)) for number in numbers]


@PROPERTY
@given(st.lists(st.integers(-(2**20), 2**20)), st.sampled_from([0.5, 2.0, -1.0, 0.25, 3.0]), st.integers(1, 64))
@example([49], 2.0, 49)
def test_scaled_integers_are_cut_towards_zero(numbers: list[int], factor: float, divisor: int) -> None:
    """A factor and a division together give the exact product, cut towards zero, where a float can hold it."""
    array = np.array(numbers, np.int64)
    scale(array, "int64", factor, divisor)
    assert array.tolist() == [trunc(Fraction(number) * Fraction(factor) / divisor) for number in numbers]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 64, 1000])
def test_floats_are_divided_with_one_rounding(dtype: str, divisor: int) -> None:
    """The average of floats is the correctly rounded quotient, not a product with a rounded reciprocal."""
    values = np.random.default_rng(divisor).normal(size=1000).astype(dtype)
    expected = np.array([float(Fraction(float(value)) / divisor) for value in values]).astype(dtype)
    scale(values, dtype, 1.0, divisor)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("divisor", [2, 3, 5, 6, 7, 12, 64])
def test_bfloat16_is_divided_with_one_rounding(divisor: int) -> None:
    """The same for every finite bfloat16."""
    bits = ALL_BITS[np.isfinite(widen(ALL_BITS))]
    expected = narrow((widen(bits).astype(np.float64) / divisor).astype(np.float32))
    scale(bits, "bfloat16", 1.0, divisor)
    np.testing.assert_array_equal(widen(bits), widen(expected))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_a_factor_scales_floats(dtype: str) -> None:
    """A power of two is exact in every float dtype; factor 1 and divisor 1 leave every bit, NaN's too."""
    numbers = np.array([1.5, -3.0, 0.0, 96.0])
    array = narrow(numbers.astype(np.float32)) if dtype == "bfloat16" else numbers.astype(dtype)
    scale(array, dtype, 0.25)
    result = widen(array) if dtype == "bfloat16" else array
    np.testing.assert_array_equal(result, numbers / 4)
    before = array.tobytes()
    scale(array, dtype, 1.0, 1)
    assert array.tobytes() == before
    scale(np.empty(0, wire_dtype(dtype)), dtype, 0.5, 3)


@pytest.mark.parametrize("factor", [0.1915194503788923, 1 / 3, -2.7182818284590452, 1e-3, 100_000.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_multiplied_in_float32(dtype: str, factor: float) -> None:
    """Every finite value times a factor, which is rounded to float32 and not to half precision: torch's bits."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    values = torch.from_numpy(ALL_BITS.view(np.int16)).view(kind)
    values = values[values.isfinite()]
    theirs = (values.float() * torch.tensor(factor, dtype=torch.float32)).to(kind)
    mine = values.clone().view(torch.int16).numpy().view(wire_dtype(dtype))
    with np.errstate(over="ignore"):
        scale(mine, dtype, factor)
    assert mine.tobytes() == theirs.view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("factor", [0.1915194503788923, 1 / 3, -2.7182818284590452])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_integers_are_multiplied_in_float64(dtype: str, factor: float) -> None:
    """An integer times a factor is their product in float64, cut towards zero: torch's bits."""
    torch = pytest.importorskip("torch")
    factor = abs(factor) if dtype == "uint8" else factor
    most = 30 if dtype in ("int8", "uint8") else 10_000
    values = np.arange(0 if dtype == "uint8" else -most, most).astype(dtype)
    theirs = (torch.from_numpy(values).double() * factor).to(getattr(torch, dtype))
    scale(values, dtype, factor)
    assert values.tolist() == theirs.tolist()


def test_a_factor_and_a_divisor_are_one() -> None:
    """Their quotient is what counts: an average of halves, times 2, stays in float16's range all the way."""
    array = np.array([40000, -2], np.float16)
    scale(array, "float16", 2.0, 2)
    assert array.tolist() == [40000, -2]


def test_every_dtype_has_a_way_to_travel() -> None:
    """numpy's dtypes travel as they are, bfloat16 as 16 bits."""
    for dtype in [*INTEGERS, "bool", "float16", "float32", "float64"]:
        assert wire_dtype(dtype) == np.dtype(dtype)
    assert wire_dtype("bfloat16") == np.uint16
