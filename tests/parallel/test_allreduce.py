"""Allreduce in all its forms. The oracle is numpy on the inputs of all ranks, which every rank can make by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from thorough import diagonal

import workbench.torch as hvd

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]

# 0-d, empty, an empty dimension amid others, one element, fewer elements than ranks, odd, two dimensions, large.
SHAPES: list[tuple[int, ...]] = [(), (0,), (2, 0, 3), (1,), (3,), (257,), (5, 7), (200_003,)]

_NUMPY: dict[Any, Callable[[Any], Any]] = {
    hvd.Sum: lambda all_: all_.sum(0),
    hvd.Average: lambda all_: all_.sum(0) / len(all_),
    hvd.Min: lambda all_: all_.min(0),
    hvd.Max: lambda all_: all_.max(0),
    hvd.Product: lambda all_: all_.prod(0),
}


def whole_numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """A rank's input: small whole numbers, whose sums and products over 4 ranks are exact in every dtype."""
    low = 0 if dtype in (torch.uint8, torch.bool) else -3
    high = 2 if dtype is torch.bool else 4
    return np.random.default_rng([rank, len(shape), *shape]).integers(low, high, shape)


def expected(n: int, shape: tuple[int, ...], dtype: torch.dtype, op: Any) -> torch.Tensor:
    """The closed form in float64; integers are cut towards zero."""
    value = torch.as_tensor(_NUMPY[op](np.stack([whole_numbers(rank, shape, dtype) for rank in range(n)]))).double()
    return (value if dtype.is_floating_point else value.trunc()).to(dtype)


def mine(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """This rank's input as a tensor."""
    return torch.from_numpy(np.asarray(whole_numbers(rank, shape, dtype))).to(dtype)


def assert_same(actual: torch.Tensor, wanted: torch.Tensor, op: Any = None) -> None:
    """Equal in dtype, shape and every bit; one rounding step is allowed where dividing by 3 or 5 ranks rounds."""
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
    if op is not hvd.Average or hvd.size() & (hvd.size() - 1) == 0 or not wanted.dtype.is_floating_point:
        assert torch.equal(actual, wanted), (actual, wanted)
    else:
        step = 2 * torch.finfo(wanted.dtype).eps
        assert torch.allclose(actual, wanted, rtol=step, atol=step), (actual, wanted)


@pytest.mark.parametrize(("dtype", "op"), diagonal([*INTEGERS, *FLOATS], OPS))
def test_closed_form(dtype: torch.dtype, op: Any, rank: int, n: int) -> None:
    """Every op, dtype and shape gives numpy's result, in new memory, and leaves the input as it was."""
    for shape in SHAPES:
        tensor = mine(rank, shape, dtype)
        before = tensor.clone()
        result = hvd.allreduce(tensor, op=op, name="closed_form")
        assert_same(result, expected(n, shape, dtype, op), op)
        assert torch.equal(tensor, before)
        assert tensor.numel() == 0 or result.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize(("op", "dtype"), diagonal([hvd.Sum, hvd.Average], FLOATS))
def test_random_floats(dtype: torch.dtype, op: Any, rank: int, n: int) -> None:
    """Sums of arbitrary numbers stay within the rounding of n additions in their dtype."""
    for length in (5, 100_003):
        inputs = [
            torch.randn(length, generator=torch.Generator().manual_seed(r), dtype=torch.float64) for r in range(n)
        ]
        inputs = [each.to(dtype) for each in inputs]
        exact = torch.stack(inputs).double().sum(0) / (n if op is hvd.Average else 1)
        size = torch.stack(inputs).double().abs().sum(0) / (n if op is hvd.Average else 1)
        result = hvd.allreduce(inputs[rank], op=op)
        assert result.dtype is dtype
        assert bool(((result.double() - exact).abs() <= (n + 1) * torch.finfo(dtype).eps * size).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_the_same_bits_on_every_rank(dtype: torch.dtype, rank: int, n: int) -> None:
    """Whatever the rounding, all ranks hold the same result: else models would drift apart."""
    for length in (3, 1000, 100_003):
        inputs = torch.randn(length, generator=torch.Generator().manual_seed(rank)) * 100
        result = hvd.allreduce(inputs.to(dtype), op=hvd.Average)
        everyone = hvd.allgather(result.unsqueeze(0))
        assert torch.equal(everyone, result.expand_as(everyone))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_nan_and_inf_arrive(dtype: torch.dtype, rank: int, n: int) -> None:
    """One rank's NaN or infinity is in every rank's sum: an overflow must not be hidden."""
    tensor = torch.ones(5, dtype=dtype)
    if rank == n - 1:
        tensor[1], tensor[2], tensor[3] = float("nan"), float("inf"), float("-inf")
    for op in (hvd.Sum, hvd.Average, hvd.Max, hvd.Min):
        result = hvd.allreduce(tensor, op=op)
        assert result.isnan().tolist() == [False, True, False, False, False], op
        if op in (hvd.Sum, hvd.Average):
            assert result[2] == float("inf"), op
            assert result[3] == float("-inf"), op


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integer_average_at_the_lowest_sum(dtype: torch.dtype, n: int) -> None:
    """A sum that is the dtype's least number has no positive counterpart; its average is negative all the same."""
    if torch.iinfo(dtype).min % n:
        pytest.skip("the number of ranks does not divide the least number")
    share = torch.iinfo(dtype).min // n
    assert hvd.allreduce(torch.tensor([share, 0], dtype=dtype)).tolist() == [share, 0]


def test_scaling_holds_in_a_batch(rank: int, n: int) -> None:
    """Tensors with different factors that are in flight together are not mixed up by fusion."""
    total = n * (n + 1) / 2
    tensor = torch.full((4,), float(rank + 1))
    factors = [1.0, 0.5, 2.0, 0.5, 1.0]
    handles = [
        hvd.allreduce_async(tensor, op=hvd.Sum, name=f"factor.{i}", prescale_factor=f) for i, f in enumerate(factors)
    ]
    assert [hvd.synchronize(handle)[0].item() for handle in handles] == [factor * total for factor in factors]


def test_average_flag(rank: int, n: int) -> None:
    """``average`` True, False and None mean Average, Sum and the default Average; with ``op`` it is an error."""
    tensor = torch.tensor([float(rank)])
    total = n * (n - 1) / 2
    for call in (hvd.allreduce, hvd.allreduce_, lambda t, **k: hvd.synchronize(hvd.allreduce_async(t, **k))):
        assert call(tensor.clone(), average=True).item() == total / n
        assert call(tensor.clone(), average=False).item() == total
        assert call(tensor.clone(), average=None).item() == total / n
        assert call(tensor.clone(), average=None, op=hvd.Sum).item() == total
        for flag in (True, False):
            with pytest.raises(ValueError, match="supersedes average"):
                call(tensor.clone(), average=flag, op=hvd.Sum)
    for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_):
        assert call([tensor.clone()], average=False)[0].item() == total
        with pytest.raises(ValueError, match="supersedes average"):
            call([tensor.clone()], average=False, op=hvd.Sum)
    # The older positional form: allreduce(tensor, average, name).
    assert hvd.allreduce(tensor, False, "positional").item() == total


Form = Callable[[list[torch.Tensor], Any, str], list[torch.Tensor]]
FORMS: dict[str, tuple[bool, Form]] = {
    "plain": (False, lambda ts, op, name: [hvd.allreduce(t, op=op, name=f"{name}.{i}") for i, t in enumerate(ts)]),
    "unnamed": (False, lambda ts, op, name: [hvd.allreduce(t, op=op) for t in ts]),
    "async": (
        False,
        lambda ts, op, name: [
            hvd.synchronize(h) for h in [hvd.allreduce_async(t, op=op, name=f"{name}.{i}") for i, t in enumerate(ts)]
        ],
    ),
    "in place": (True, lambda ts, op, name: [hvd.allreduce_(t, op=op, name=f"{name}.{i}") for i, t in enumerate(ts)]),
    "async in place": (
        True,
        lambda ts, op, name: [hvd.synchronize(h) for h in [hvd.allreduce_async_(t, op=op) for t in ts]],
    ),
    "grouped": (False, lambda ts, op, name: hvd.grouped_allreduce(ts, op=op, name=name)),
    "grouped async": (False, lambda ts, op, name: hvd.synchronize(hvd.grouped_allreduce_async(ts, op=op))),
    "grouped in place": (True, lambda ts, op, name: hvd.grouped_allreduce_(ts, op=op, name=name)),
    "grouped async in place": (
        True,
        lambda ts, op, name: hvd.synchronize(hvd.grouped_allreduce_async_(ts, op=op, name=name)),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, rank: int, n: int) -> None:
    """All forms give one result for mixed dtypes and shapes; those in place give the caller's own tensors back."""
    in_place, call = FORMS[form]
    kinds = [(shape, dtype) for shape in SHAPES[:-1] for dtype in (torch.float32, torch.bfloat16, torch.int64)]
    for op in (hvd.Sum, hvd.Average, hvd.Max):
        tensors = [mine(rank, *kind) for kind in kinds]
        before = [tensor.clone() for tensor in tensors]
        results = call(tensors, op, "every_form")
        assert len(results) == len(kinds)
        for kind, tensor, old, result in zip(kinds, tensors, before, results, strict=True):
            assert_same(result, expected(n, *kind, op), op)
            assert (result is tensor) == in_place
            assert in_place or torch.equal(tensor, old)


def test_an_empty_group_is_empty() -> None:
    """A group without tensors gives an empty list and asks nobody."""
    assert list(hvd.grouped_allreduce([])) == []
    assert list(hvd.synchronize(hvd.grouped_allreduce_async([]))) == []


def test_parameters_in_place(rank: int, n: int) -> None:
    """A leaf that requires a gradient can be reduced in place and stays a leaf."""
    parameter = torch.nn.Parameter(torch.full((4,), float(rank)))
    with torch.no_grad():
        assert hvd.allreduce_(parameter, op=hvd.Sum) is parameter
    assert parameter.is_leaf
    assert parameter.tolist() == [n * (n - 1) / 2] * 4


def test_a_slice_of_a_tensor_in_place(rank: int, n: int) -> None:
    """Rows of a larger tensor are contiguous memory: they are reduced, and nothing around them is touched."""
    tensor = torch.full((6, 3), float(rank))
    hvd.allreduce_(tensor[2:4], op=hvd.Sum)
    assert (tensor[2:4] == n * (n - 1) / 2).all()
    assert (tensor[:2] == rank).all()
    assert (tensor[4:] == rank).all()


def test_names_can_be_used_again(rank: int, n: int) -> None:
    """One name for another shape, dtype or op each time: what was negotiated before is not taken for granted."""
    for i in range(30):
        shape, dtype = SHAPES[i % 6], [torch.float32, torch.int32, torch.float64][i % 3]
        op = [hvd.Sum, hvd.Max][i // 6 % 2]
        assert_same(hvd.allreduce(mine(rank, shape, dtype), op=op, name="again"), expected(n, shape, dtype, op))


def test_the_input_may_be_dropped(rank: int, n: int) -> None:
    """The handle keeps the memory: the caller may forget the tensor while it travels."""
    handles = []
    for i in range(20):
        tensor = torch.full((50_000,), float(rank + i))
        handles.append(hvd.allreduce_async(tensor, op=hvd.Sum, name=f"dropped.{i}"))
        del tensor
    for i, handle in enumerate(handles):
        result = hvd.synchronize(handle)
        assert result.unique().tolist() == [n * (n - 1) / 2 + n * i]


def test_more_than_the_fusion_threshold(rank: int, n: int) -> None:
    """Batches of several times the fusion buffer arrive complete: 40 tensors of 4 MiB, buffer 64 MiB."""
    tensors = [torch.full((1 << 20,), float(rank + i)) for i in range(40)]
    handles = [hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"large.{i}") for i, tensor in enumerate(tensors)]
    for i, handle in enumerate(handles):
        result = hvd.synchronize(handle)
        wanted = n * (n - 1) / 2 + n * i
        assert result[0] == result[-1] == wanted
        assert (result == wanted).all()


@pytest.mark.parametrize("length", [2, 200_000])
def test_what_overflows_is_infinite(rank: int, n: int, length: int) -> None:
    """A sum beyond the dtype's range is inf on all ranks, and a sum of inf and -inf nan, also where warnings raise."""
    large = hvd.allreduce(torch.full((length,), 60_000.0, dtype=torch.float16), op=hvd.Sum)
    assert torch.isinf(large).all() == (n > 1)
    mixed = hvd.allreduce(torch.full((length,), float("inf") if rank == 0 else float("-inf")), op=hvd.Sum)
    assert torch.isnan(mixed).all() == (n > 1)
