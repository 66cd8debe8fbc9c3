"""What NCCL computes with: its types and operations, on numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BFLOAT16 = 9
# numpy has no bfloat16: its 16 bits travel as they are.
_NAMES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
TYPES = {number: np.dtype(name) for number, name in enumerate([*_NAMES, "uint16"])}
SUM, PROD, MAX, MIN, AVG = range(5)
_CALLS = {SUM: np.add, PROD: np.multiply, MAX: np.maximum, MIN: np.minimum, AVG: np.add}


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """A bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def combine(datatype: int, op: int, parts: Sequence[Array]) -> Array:
    """One array of many, rank by rank; every step is rounded to the type, as on the way around a ring."""
    with np.errstate(all="ignore"):
        if datatype == BFLOAT16:
            wide = _CALLS[op]
            bits = reduce(lambda a, b: to_bfloat16(wide(from_bfloat16(a), from_bfloat16(b))), parts)
            return to_bfloat16(from_bfloat16(bits) / np.float32(len(parts))) if op == AVG else bits
        total: Array = reduce(_CALLS[op], parts)
        return _divide(total, len(parts)) if op == AVG else total


def _divide(total: Array, by: int) -> Array:
    """Whole numbers are cut towards zero, as in C."""
    if total.dtype.kind == "f":
        return total / total.dtype.type(by)
    quotient, rest = np.divmod(total, total.dtype.type(by))
    return quotient + ((rest != 0) & (total < 0)).astype(total.dtype)
