"""Reducing arrays of all ranks in the order of the ranks: bit for bit what torch, adding one after the other, gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from workbench.collectives.reduction import Reduction, fold, narrow, scale, wire_dtype

torch = pytest.importorskip("torch")

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
COMBINE = {"sum": "add", "average": "add", "min": "minimum", "max": "maximum", "product": "mul"}


def drawn(rank: int, length: int, dtype: str) -> np.ndarray:
    """A rank's data: floats of all sizes, so that each addition rounds; integers that overflow."""
    dice = np.random.default_rng(10 + rank)
    if dtype == "bool":
        return dice.integers(0, 2, length).astype(bool)
    if dtype == "uint16" or dtype in INTEGERS:
        info = np.iinfo(dtype)
        return dice.integers(info.min, info.max, length, endpoint=True, dtype=dtype)
    values = dice.normal(size=length) * 2.0 ** dice.integers(-6, 6, length)
    return narrow(values.astype(np.float32)) if dtype == "bfloat16" else values.astype(dtype)


def as_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    """The same numbers in torch, in new memory."""
    copy = torch.from_numpy(array.copy().view(np.int16) if dtype == "bfloat16" else array.copy())
    return copy.view(torch.bfloat16) if dtype == "bfloat16" else copy


def bits(tensor: torch.Tensor) -> bytes:
    """What stands in the tensor's memory."""
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def one_after_the_other(parts: list[np.ndarray], op: str, dtype: str) -> torch.Tensor:
    """((x0 ∘ x1) ∘ x2) ∘ …, in torch."""
    total, *rest = [as_torch(part, dtype) for part in parts]
    for part in rest:
        total = getattr(torch, COMBINE[op])(total, part)
    return total


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("op", COMBINE)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_a_fold_has_the_bits_of_a_serial_loop(dtype: str, op: str, n: int) -> None:
    """Whatever op, dtype and number of ranks; the parts are only read."""
    parts = [drawn(rank, 1000, dtype) for rank in range(n)]
    before = [part.tobytes() for part in parts]
    out = np.empty(1000, wire_dtype(dtype))
    with np.errstate(all="ignore"):
        fold(parts, Reduction(op, dtype), out)
    assert out.tobytes() == bits(one_after_the_other(parts, op, dtype))
    assert [part.tobytes() for part in parts] == before


@pytest.mark.parametrize("op", ["sum", "max", "product", "min"])
def test_bool(op: str) -> None:
    """Sum and max mean "or", product and min mean "and"."""
    parts = [drawn(rank, 100, "bool") for rank in range(3)]
    out = np.empty(100, bool)
    fold(parts, Reduction(op, "bool"), out)
    np.testing.assert_array_equal(out, np.any(parts, axis=0) if op in ("sum", "max") else np.all(parts, axis=0))


@pytest.mark.parametrize(("n", "into"), [(n, into) for n in (1, 2, 3, 4) for into in range(n)])
@pytest.mark.parametrize("prescale", [1.0, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_the_result_may_take_the_place_of_a_part(dtype: str, prescale: float, n: int, into: int) -> None:
    """Any rank's part may be overwritten by the result, which is the same then; the other parts are left alone."""
    parts = [drawn(rank, 500, dtype) for rank in range(n)]
    reduction, elsewhere = Reduction("sum", dtype, prescale=prescale), np.empty(500, wire_dtype(dtype))
    fold(parts, reduction, elsewhere)
    before = [part.tobytes() for part in parts]
    fold(parts, reduction, parts[into])
    assert parts[into].tobytes() == elsewhere.tobytes()
    assert all(parts[rank].tobytes() == before[rank] for rank in range(n) if rank != into)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(("prescale", "postscale"), [(0.5, 1.0), (1.0, -4.0), (0.25, 8.0)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_factors_by_powers_of_two(dtype: str, prescale: float, postscale: float, n: int) -> None:
    """``postscale · Σ prescale · x`` is exact in the factors: the serial loop's sum, shifted."""
    parts = [drawn(rank, 1000, dtype) for rank in range(n)]
    out = np.empty(1000, wire_dtype(dtype))
    fold(parts, Reduction("sum", dtype, prescale, postscale), out)
    expected = one_after_the_other(parts, "sum", dtype) * (prescale * postscale)
    if dtype == "float16":  # its smallest numbers lose digits on the way
        np.testing.assert_allclose(out.astype(float), expected.double().numpy(), rtol=2**-10, atol=2**-20)
    else:
        assert out.tobytes() == bits(expected)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", FLOATS)
def test_an_average_is_the_sum_divided_once(dtype: str, n: int) -> None:
    """The average is the serial loop's sum, and one correctly rounded division."""
    parts = [drawn(rank, 1000, dtype) for rank in range(n)]
    out = np.empty(1000, wire_dtype(dtype))
    fold(parts, Reduction("average", dtype, divisor=n), out)
    assert out.tobytes() == bits(one_after_the_other(parts, "sum", dtype) / n)


@pytest.mark.parametrize(("pre", "post", "divisor"), [*itertools.product([1.0, 2.0], [1.0, 0.5], [1, 3])])
def test_before_combine_and_after_make_the_same(pre: float, post: float, divisor: int) -> None:
    """The three acts of a Reduction, as the ring does them, give the bits of a fold."""
    parts = [drawn(rank, 100, "float32") for rank in range(2)]
    reduction = Reduction("sum", "float32", pre, post, divisor)
    out = np.empty(100, np.float32)
    fold(parts, reduction, out)
    for part in parts:
        reduction.before(part)
    reduction.combine(parts[0], parts[1], out=parts[0])
    reduction.after(parts[0])
    assert out.tobytes() == parts[0].tobytes()


def test_integers_with_factors_are_cut_towards_zero() -> None:
    """A factor and a divisor on integers: the exact quotient, without its fraction, as ``scale`` gives it."""
    parts = [np.array([7, -7, 100], np.int32), np.array([1, -2, 3], np.int32)]
    out = np.empty(3, np.int32)
    fold(parts, Reduction("average", "int32", postscale=0.5, divisor=2), out)
    assert out.tolist() == [2, -2, 25]
    total = parts[0] + parts[1]
    scale(total, "int32", 0.5, 2)
    assert out.tolist() == total.tolist()


@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "bool"])
def test_nothing_is_reduced_to_nothing(dtype: str) -> None:
    """Parts without elements are no error."""
    empty = [np.empty(0, wire_dtype(dtype)) for _ in range(3)]
    fold(empty, Reduction("sum", dtype, prescale=0.5), empty[1])
