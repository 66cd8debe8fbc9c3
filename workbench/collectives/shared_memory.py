"""Allreduce among ranks that can read and write each other's memory: nothing is sent, and nothing copied.

The array of K bytes is cut into n chunks. Rank r reads chunk r of *all* ranks, reduces it, and writes the result to
all of them. Per rank: K bytes read and K written (n pieces of K/n each), no message, and one barrier at the end.

The values are added in the order of the ranks, ((x0 + x1) + x2) + …, whichever rank does it and wherever the chunks
end. So all ranks get the same bits, and they are those of a serial program that adds in this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.collectives.reduction import Reduction, fold
from workbench.collectives.traffic import Array

BLOCK_BYTES = 256 << 10
"""A block of every rank's array fits into the core's cache, so each byte crosses the memory bus once."""


def reduce_across(arrays: Sequence[Array], start: int, stop: int, reduction: Reduction) -> None:
    """Reduce elements ``start`` to ``stop`` of every rank's array into all of them.

    Args:
        arrays: one per rank, of one length and dtype.
        start, stop: this rank's chunk.
        reduction: what is done to it.

    Example:
        >>> import numpy as np
        >>> arrays = [np.float32([1, 2, 3, 4]), np.float32([10, 20, 30, 40])]
        >>> reduce_across(arrays, 0, 2, Reduction("sum", "float32")); arrays[1]
        array([11., 22., 30., 40.], dtype=float32)
    """
    for low, high in blocks(start, stop, arrays[0].itemsize):
        result, *copies = [array[low:high] for array in arrays]
        fold([result, *copies], reduction, result)
        for copy in copies:
            copy[...] = result


def reduce_into(out: Array, arrays: Sequence[Array], start: int, reduction: Reduction) -> None:
    """Reduce ``len(out)`` elements from ``start`` on of every rank's array into ``out``, which may be a part of one."""
    for low, high in blocks(0, len(out), out.itemsize):
        fold([array[start + low : start + high] for array in arrays], reduction, out[low:high])


def blocks(start: int, stop: int, itemsize: int, nbytes: int = BLOCK_BYTES) -> Iterator[tuple[int, int]]:
    """``start`` to ``stop`` in pieces of so many bytes.

    Example:
        >>> list(blocks(0, 100_000, itemsize=4))
        [(0, 65536), (65536, 100000)]
    """
    step = nbytes // itemsize
    return ((low, min(low + step, stop)) for low in range(start, stop, step))
