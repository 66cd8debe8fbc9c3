"""Factors before and after a reduction, bit by bit: what a script that compares with its own product will find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from thorough import diagonal

import workbench.torch as hvd

FACTOR = 0.1915194503788923  # no power of two, and another number in half precision
HALVES = [torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*HALVES, torch.float32, torch.float64, *INTEGERS]
# With the response, through one slot of the shared memory, and through a pipeline of them.
LENGTHS = [7, 20_011, 400_003]

Verb = Callable[..., torch.Tensor]


def numbers(length: int, dtype: torch.dtype) -> torch.Tensor:
    """The same whole numbers on every rank, so small that no sum of four rounds them."""
    most = 20 if dtype in (torch.uint8, torch.int8) else 100
    low = 0 if dtype is torch.uint8 else -most
    return torch.from_numpy(np.random.default_rng(1234).integers(low, most, length)).to(dtype)


def times(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The product: integers in float64, half precision in float32; both back in the tensor's own dtype."""
    wide = torch.float32 if tensor.dtype in HALVES else torch.float64 if tensor.dtype in INTEGERS else tensor.dtype
    return (tensor.to(wide) * torch.tensor(factor, dtype=torch.float64).to(wide)).to(tensor.dtype)


def added(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """``n`` times the tensor, one after the other."""
    total = tensor.clone()
    for _ in range(n - 1):
        total += tensor
    return total


def mine(whole: torch.Tensor, rank: int, n: int) -> torch.Tensor:
    """This rank's part of a result."""
    counts = [len(whole) // n + (r < len(whole) % n) for r in range(n)]
    return whole[sum(counts[:rank]) : sum(counts[: rank + 1])]


ALL: dict[str, Verb] = {
    "allreduce": lambda x, **how: hvd.allreduce(x, **how),
    "allreduce_": lambda x, **how: hvd.allreduce_(x.clone(), **how),
    "grouped_allreduce": lambda x, **how: hvd.grouped_allreduce([x, x[:5], x], **how)[2],
}
PARTS: dict[str, Verb] = {
    "reducescatter": lambda x, **how: hvd.reducescatter(x, **how),
    "grouped_reducescatter": lambda x, **how: hvd.grouped_reducescatter([x, x[:5], x], **how)[2],
}
VERBS = pytest.mark.parametrize("verb", [*ALL, *PARTS])


def check(verb: str, dtype: torch.dtype, how: dict[str, Any], wanted: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The verb gives the bits of ``wanted(what every rank gives)``."""
    rank, n = hvd.rank(), hvd.size()
    for length in LENGTHS:
        tensor = numbers(length, dtype)
        whole = wanted(tensor)
        result = (ALL | PARTS)[verb](tensor, **how)
        assert torch.equal(result, whole if verb in ALL else mine(whole, rank, n)), (verb, dtype, length)


@pytest.mark.parametrize(("dtype", "verb"), diagonal(DTYPES, [*ALL, *PARTS]))
def test_prescale(dtype: torch.dtype, verb: str, n: int) -> None:
    """Each rank's numbers are multiplied and rounded to the tensor's dtype; then they are added up."""
    check(verb, dtype, {"op": hvd.Sum, "prescale_factor": FACTOR}, lambda x: added(times(x, FACTOR), n))


@pytest.mark.parametrize(("dtype", "verb"), diagonal(DTYPES, [*ALL, *PARTS]))
def test_postscale(dtype: torch.dtype, verb: str, n: int) -> None:
    """The sum is one of the tensor's dtype; it is multiplied and rounded once."""
    check(verb, dtype, {"op": hvd.Sum, "postscale_factor": FACTOR}, lambda x: times(added(x, n), FACTOR))


@pytest.mark.parametrize(("dtype", "verb"), diagonal(HALVES, [*ALL, *PARTS]))
def test_average_with_factors(dtype: torch.dtype, verb: str, n: int) -> None:
    """The divisor of an average and the factor after it are one number, in float32."""
    how = {"op": hvd.Average, "prescale_factor": 1 / 3, "postscale_factor": 3.0}
    check(verb, dtype, how, lambda x: times(added(times(x, 1 / 3), n), 3.0 / n))
