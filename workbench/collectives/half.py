"""16-bit floats on the CPU: the same bits as numpy's arithmetic, without its detours.

numpy converts each float16 by itself, and one below 6e-5 (a subnormal number) takes up to 60 ns instead of 1.4.
Gradients are that small. Here a table of all 65,536 values makes float32 of them, and some operations on bits make
float16 again: a sum takes 5.7 ns a value, that of bfloat16 2.7. Where the process has imported torch, its sums do: they
use the processor's instructions for such floats, and take 0.6 ns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.collectives.traffic import Array

_INFINITE = int(np.float32(65520).view(np.uint32))  # what is rounded to infinity, infinity, and what is no number
_SUBNORMAL = np.uint32(113 << 23)  # 2**-14
_BLOCK = 1 << 14  # values: what a block needs fits into a core's cache
_KNOWN = (np.dtype(np.float16), np.dtype(np.uint16), np.dtype(np.float32))


def in_float32(ufunc: Callable[..., Any], a: Array, b: Array | np.float32, /, *, out: Array) -> Array:
    """``ufunc(a, b, out=out)`` of float16 arrays: computed in float32, rounded once, as numpy does it.

    Args:
        ufunc: numpy's add, multiply or divide.
        a, out: of one length; ``out`` may be an operand.
        b: as ``a``, or a number.

    Example:
        >>> x = np.float16([1, 2, 3e-7]); in_float32(np.add, x, x, out=x)
        array([2.e+00, 4.e+00, 6.e-07], dtype=float16)
    """
    if not isinstance(a, np.ndarray) or not a.size:  # on a GPU
        return ufunc(a, b, out=out)  # type: ignore[no-any-return]
    if by_torch(ufunc, a, b, out, "float16"):
        return out
    first, into = a.reshape(-1), out.reshape(-1)
    wide, other = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    second = b.reshape(-1) if isinstance(b, np.ndarray) else None
    for block in _blocks(len(first)):
        x = _widen(first[block], wide)
        y = b if second is None else _widen(second[block], other)
        _narrow(ufunc(x, y, out=x), into[block])
    return out


def by_torch(ufunc: Callable[..., Any], a: Array, b: Array | np.float32, out: Array, dtype: str) -> bool:
    """Add or multiply as torch does, which rounds the float32 result once, too; False if it cannot be done so.

    Args:
        ufunc, a, b, out: see :func:`in_float32`; of bfloat16 the arrays are the bits.
        dtype: float16 or bfloat16.
    """
    name = "add" if ufunc is np.add else "mul" if ufunc is np.multiply else ""
    second = [] if isinstance(b, np.float32) else [b]
    if not name or (found := _tensors(dtype, a, *second, out)) is None:
        return False
    torch, operands = found
    for block in _blocks(len(operands[0])):
        parts = [each[block] for each in operands]
        getattr(torch, name)(parts[0], parts[1] if second else float(b), out=parts[-1])
    return True


def copied_by_torch(source: Array, out: Array, dtype: str) -> bool:
    """Round float32 to 16 bits, or make float32 of them; False if it cannot be done so.

    Args:
        source, out: of one length; one is float32, the other holds ``dtype``, of bfloat16 the bits.
        dtype: float16 or bfloat16.
    """
    if (found := _tensors(dtype, source, out)) is None:
        return False
    _, (first, into) = found
    for block in _blocks(len(into)):
        into[block].copy_(first[block])
    return True


def _tensors(dtype: str, *arrays: Array) -> tuple[Any, list[Any]] | None:
    """torch, and the arrays as its tensors; None where nobody has imported it: that takes 1.5 s and 150 MB."""
    torch: Any = sys.modules.get("torch")
    view, kind = getattr(torch, "from_numpy", None), getattr(torch, dtype, None)
    if view is None or kind is None:  # or another thread has only begun to import it
        return None
    found = []
    for array in arrays:
        known = isinstance(array, np.ndarray) and array.dtype in _KNOWN
        if not (known and array.flags.c_contiguous and array.flags.writeable):
            return None
        flat = array.reshape(-1)
        found.append(view(flat) if array.dtype == np.float32 else view(flat.view(np.int16)).view(kind))
    return torch, found


def _blocks(length: int) -> Iterator[slice]:
    """One by one, or torch would start threads of its own for them."""
    return (slice(start, start + _BLOCK) for start in range(0, length, _BLOCK))


def _widen(values: NDArray[np.float16], out: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.take(_table(), values.view(np.uint16), out=out[: len(values)], mode="clip")


def _narrow(values: NDArray[np.float32], out: NDArray[np.float16]) -> None:
    """Round to nearest, ties to even."""
    bits = values.view(np.uint32)
    size = bits & np.uint32(0x7FFFFFFF)
    if int(size.max()) >= _INFINITE:
        with np.errstate(over="ignore"):
            out[...] = values
        return
    # A float16 has 10 bits of fraction, 13 less than a float32, and an exponent that is 112 less.
    rounded = (size >> np.uint32(13)) & np.uint32(1)
    rounded += size
    rounded += np.uint32(0xFFF)
    rounded -= np.uint32(112 << 23)
    rounded >>= np.uint32(13)
    # A subnormal one is a multiple of 2**-24, as is the last bit of 0.5: adding rounds.
    small = size.view(np.float32) + np.float32(0.5)
    np.subtract(small.view(np.uint32), np.float32(0.5).view(np.uint32), out=rounded, where=size < _SUBNORMAL)
    rounded |= (bits >> np.uint32(16)) & np.uint32(0x8000)
    out.view(np.uint16)[...] = rounded


@lru_cache(maxsize=1)
def _table() -> NDArray[np.float32]:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
