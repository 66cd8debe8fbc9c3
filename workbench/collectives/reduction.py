"""Element-wise reductions and scalings by the name of the dtype.

numpy has no bfloat16. Such an array travels as uint16 (the upper half of a float32's bits) and is
reduced in float32, rounded to nearest even on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.collectives.half import by_torch, copied_by_torch, in_float32
from workbench.collectives.ring import Combine
from workbench.collectives.traffic import Array

_UFUNCS: dict[str, Combine] = {
    "sum": np.add,
    "average": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}
_ROUNDED = ("sum", "average", "product")


@dataclass(frozen=True, slots=True)
class Reduction:
    """How the arrays of all ranks become one: ``postscale · op(prescale · x) / divisor``.

    Args:
        op: sum, average, min, max, product or adasum. An average is a sum; its divisor is the number of ranks.
        dtype: the tensor's dtype name, which differs from the array's for bfloat16.
        prescale, postscale: factors.
        divisor: a whole number.

    Example:
        >>> mean, a, b = Reduction("average", "float32", divisor=2), np.float32([1, 2]), np.float32([3, 4])
        >>> total = mean.combine(a, b, out=a); mean.after(a); a
        array([2., 3.], dtype=float32)
    """

    op: str
    dtype: str
    prescale: float = 1.0
    postscale: float = 1.0
    divisor: int = 1

    def before(self, array: Array) -> None:
        """What every rank does to its own array first, in place."""
        scale(array, self.dtype, self.prescale)

    @property
    def combine(self) -> Combine:
        return combine_for(self.op, self.dtype)

    def after(self, array: Array) -> None:
        """What is done to the result, in place."""
        scale(array, self.dtype, self.postscale, self.divisor)


def fold(parts: Sequence[Array], reduction: Reduction, out: Array) -> None:
    """Reduce arrays of all ranks into ``out``, which may be one of them, in the order of the ranks.

    Example:
        >>> out = np.empty(2); fold([np.array([1.0, 2]), np.array([3.0, 4])], Reduction("sum", "float64"), out); out
        array([4., 6.])
    """
    if reduction.prescale != 1.0:
        parts = [part.copy() for part in parts]
        for part in parts:
            reduction.before(part)
    needed_later = any(np.may_share_memory(part, out) for part in parts[2:])
    total, first = np.empty_like(out) if needed_later else out, parts[0]
    combine = reduction.combine
    for part in parts[1:]:
        combine(first, part, out=total)
        first = total
    if first is not total:
        total[...] = first
    reduction.after(total)
    if total is not out:
        out[...] = total


def wire_dtype(dtype: str) -> np.dtype[np.generic]:
    """The numpy dtype in which a tensor dtype travels: of those that numpy lacks, the bits.

    Example:
        >>> wire_dtype("float32"), wire_dtype("bfloat16"), wire_dtype("float8_e5m2")
        (dtype('float32'), dtype('uint16'), dtype('uint8'))
    """
    if dtype.startswith("float8_"):
        return np.dtype(np.uint8)
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def combine_for(op: str, dtype: str) -> Combine:
    """The ``combine(a, b, out=c)`` of a reduction; ``op`` is sum, average, min, max or product.

    An average is summed up; dividing by the number of ranks is :func:`scale`'s. For bool, sum is "or" and
    product is "and".
    """
    ufunc = _UFUNCS[op]
    if dtype == "float16" and op in _ROUNDED:
        return partial(in_float32, ufunc)
    return partial(_combine_bfloat16, ufunc) if dtype == "bfloat16" else ufunc


def scale(array: Array, dtype: str, factor: float, divisor: int = 1) -> None:
    """Multiply by ``factor / divisor``, in place; integers are cut towards zero.

    A factor has Horovod's bits: half precision is multiplied in float32, integers in float64, and the product is
    rounded once to the tensor's dtype. (On a GPU the factor of a float16 tensor is rounded to float16 first, as by
    Horovod's kernels there.) A divisor alone is more exact than Horovod's product with ``1 / divisor``: the quotient of
    floats is correctly rounded, and that of integers exact at any size.

    Example:
        >>> x = np.array([7, -7]); scale(x, "int64", 1.0, 2); x
        array([ 3, -3])
        >>> half = np.array([30], np.float16); scale(half, "float16", 0.1); float(half[0])
        3.0
    """
    if (factor == 1.0 and divisor == 1) or array.size == 0:
        return
    if dtype == "bfloat16":
        _combine_bfloat16(np.multiply, array, np.float32(factor / divisor), out=array)
    elif dtype == "float16" and isinstance(array, np.ndarray):
        if factor != 1.0 or divisor & (divisor - 1) == 0:
            in_float32(np.multiply, array, np.float32(factor / divisor), out=array)
        else:
            in_float32(np.divide, array, np.float32(divisor), out=array)
    elif array.dtype.kind == "f":
        # In one step: a factor by itself may lead out of float16's range, which predivision is there to prevent. By a
        # power of two the product is as exact as the quotient, and faster.
        if factor != 1.0 or divisor & (divisor - 1) == 0:
            np.multiply(array, array.dtype.type(factor / divisor), out=array)
        else:
            np.divide(array, array.dtype.type(divisor), out=array)
    elif factor == 1.0:
        wide = array.astype(np.int64)
        down = wide // divisor  # rounds towards minus infinity: one too low where something negative is left over
        array[...] = down + ((wide < 0) & (down * divisor != wide))
    else:
        exact = array.astype(np.float64)
        exact *= factor
        if divisor != 1:
            exact /= divisor
        array[...] = exact  # as in C, without the fraction


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits as float32; exact.

    Example:
        >>> widen(np.array([0x3F80, 0xC000], np.uint16))
        array([ 1., -2.], dtype=float32)
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 as bfloat16 bits, rounded to nearest even; NaN stays NaN.

    Example:
        >>> hex(int(narrow(np.array([1.0 + 2**-8], np.float32))[0]))
        '0x3f80'
    """
    found = np.empty(values.shape, np.uint16)
    if copied_by_torch(values, found, "bfloat16"):
        return found
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def _combine_bfloat16(
    ufunc: Callable[..., Any], a: NDArray[np.uint16], b: NDArray[np.uint16] | np.float32, /, *, out: NDArray[np.uint16]
) -> None:
    if by_torch(ufunc, a, b, out, "bfloat16"):
        return
    wide = widen(a)
    ufunc(wide, b if isinstance(b, np.float32) else widen(b), out=wide)  # arrays, on a GPU too
    out[...] = narrow(wide)
