"""Factors that are applied outside of a reduction have the bits of those inside: half precision in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import workbench as hvd
from workbench.core.messages import Kind
from workbench.job.arrays import scaled
from workbench.job.calls import Call
from workbench.training.derivatives import derivative_of
from workbench.training.gradient_list import GradientList


def values(dtype: str) -> np.ndarray:
    """Whole numbers that half precision can hold."""
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    return np.arange(1, 121).reshape(60, 2).astype(kind)


def times(array: np.ndarray, factor: float) -> np.ndarray:
    """In float32, rounded once."""
    return (array.astype(np.float32) * np.float32(factor)).astype(array.dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_average_of_sparse_gradients(dtype: str) -> None:
    """Each rank's rows are divided by the number of ranks, not multiplied by a third that half precision can hold."""
    rows, places = values(dtype), np.arange(60)

    def step() -> list[Any]:
        return GradientList(["embedding"])([(rows, places)]) or []

    for ((made, _),) in hvd.run_threads(3, step):
        assert made.dtype == rows.dtype
        np.testing.assert_array_equal(made, np.concatenate([times(rows, 1 / 3)] * 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_derivative_of_a_scaled_reducescatter(dtype: str) -> None:
    """It is a gather, times both factors."""
    dy = values(dtype)

    def derivative() -> Any:
        call = Call(Kind.REDUCESCATTER, "x", hvd.Average, 1 / 3, 0.1)
        return derivative_of(call)([dy], [120])

    for (made,) in hvd.run_threads(2, derivative):
        np.testing.assert_array_equal(made, np.concatenate([times(dy, 1 / 3 * 0.1)] * 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_floats_keep_their_own_product(dtype: str) -> None:
    """A gradient without dimensions stays an array; a factor of 1 changes nothing."""
    made = scaled(np.array(3.0, dtype), 0.1)
    assert isinstance(made, np.ndarray)
    assert made.dtype == dtype
    assert made == np.dtype(dtype).type(3.0) * np.dtype(dtype).type(0.1)
    assert scaled(made, 1.0) is made
