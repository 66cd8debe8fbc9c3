"""A program for ranks: collectives of gigabytes, each in place, every byte of the result looked at. Two ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import workbench as hvd
from workbench.core.messages import Kind
from workbench.job.entries import entry, submit
from workbench.job.objects import broadcast_object

Array = np.ndarray[Any, Any]
_PERIOD = 251 * 65_537  # bytes; no power of two divides it, so bytes that are misplaced by one are found


def blocks(length: int, start: int = 0) -> Iterator[tuple[slice, Array]]:
    """Where in an array of so many bytes what stands, if its first byte is the pattern's ``start``-th."""
    pattern = (np.arange(2 * _PERIOD) % 251).astype(np.uint8)
    for low in range(0, length, _PERIOD):
        high = min(low + _PERIOD, length)
        yield slice(low, high), pattern[(low + start) % _PERIOD :][: high - low]


def filled(length: int, rank: int) -> Array:
    """A rank's values: the pattern, and its number added."""
    made = np.empty(length, np.uint8)
    for where, pattern in blocks(length):
        np.add(pattern, np.uint8(rank), out=made[where])
    return made


def wrong(array: Array, start: int = 0, times: int = 1, add: int = 1) -> int:
    """How many bytes are not ``times`` the pattern from ``start`` on, and ``add``."""
    off = (array[at] != pattern * np.uint8(times) + np.uint8(add) for at, pattern in blocks(len(array), start))
    return sum(map(np.count_nonzero, off))


def run(what: str, length: int) -> int:
    """How many bytes of the result are wrong."""
    rank = hvd.rank()
    if what == "object":
        found = broadcast_object(filled(length, 1).tobytes() if rank else None, 1)
        return wrong(np.frombuffer(found, np.uint8)) + abs(len(found) - length)
    if what == "alltoall":  # all of rank 1's go to rank 0
        rows, counts = hvd.alltoall(filled(length if rank else 3, rank), [length, 0] if rank else [3, 0])
        assert counts.tolist() == ([0, 0] if rank else [3, length])
        return 0 if rank else wrong(rows[3:])
    array = filled(length, rank)
    if what == "allgather":  # five bytes of rank 0, and all others of rank 1
        mine = array[5:] if rank else array[:5]
        made = submit([entry(Kind.ALLGATHER, mine, what, target=array)])[0].wait()
        return wrong(made[:5], add=0) + wrong(made[5:], start=5)
    about = {"root": 1} if what == "broadcast" else {"op": hvd.Sum}
    made = submit([entry(Kind(what), array, what, target=array, **about)])[0].wait()
    if what == "broadcast":
        return wrong(made)
    half = (length + 1) // 2
    mine = {"allreduce": slice(0, length), "reducescatter": slice(half, length) if rank else slice(0, half)}[what]
    return wrong(made[mine], mine.start, times=2)


if __name__ == "__main__":
    hvd.init()
    for what, length in (each.split(":") for each in sys.argv[1:]):
        print(what, length, run(what, int(length)), flush=True)
