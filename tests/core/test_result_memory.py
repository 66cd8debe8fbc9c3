"""Memory of results is used again, and never while somebody still has it."""

from __future__ import annotations

import gc
import random

import numpy as np

from workbench.core.backend.memory import ResultMemory


def test_what_somebody_has_is_nobody_elses() -> None:
    """Arrays of random sizes, kept and let go of in any order, also through views of them: none overwrites another."""
    dice, results, alive = random.Random(1), ResultMemory(least_bytes=64, most_bytes=4096), []
    for number in range(3000):
        shape = dice.choice(((3,), (8, 2), (5, 5), (400,)))
        array = results.empty(shape, dice.choice(("float32", "float64", "bool")))
        assert (array.shape, array.flags.c_contiguous, array.flags.writeable) == (shape, True, True)
        array[...] = number % 2
        alive.append((array[1:] if dice.random() < 0.5 else array, number % 2))
        del array
        while len(alive) > dice.randrange(12):
            alive.pop(dice.randrange(len(alive)))
        assert all((each == value).all() for each, value in alive)


def test_it_is_the_same_memory_again() -> None:
    """From the third time on, after the second result of a size is gone; and no longer after a release."""
    results = ResultMemory(least_bytes=8, most_bytes=1 << 20)
    first, second = (results.empty((1000,), "float32") for _ in range(2))
    address = second.ctypes.data
    assert results.empty((1000,), "float32").ctypes.data != address
    del second
    assert results.empty((500, 2), "int32").ctypes.data == address
    results.release()
    assert (first.size, first.dtype) == (1000, np.float32)


def kept(results: ResultMemory) -> int:
    """Bytes that are unused."""
    return sum(nbytes * len(blocks) for nbytes, blocks in results._unused.items())


def test_little_is_kept_unused() -> None:
    """At most so many bytes, whatever sizes come, and none of what is larger or comes after a release."""
    results = ResultMemory(least_bytes=8, most_bytes=10_000)
    for size in [*range(1, 60), 2000, 1250] * 3:
        arrays = [results.empty((size,), "float64") for _ in range(3)]
        del arrays
        assert kept(results) <= 10_000
    assert kept(results) == 10_000
    late = results.empty((1250,), "float64")
    results.release()
    del late
    assert kept(results) == 0


def test_arrays_die_amid_the_death_of_another() -> None:
    """Wherever the garbage collector comes by; and references are memory of numpy's own."""
    results = ResultMemory(least_bytes=8, most_bytes=1 << 20)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for size in [*range(1, 200)] * 3:
            ring: list[object] = [results.empty((size,), "float64")]
            ring.append(ring)
            del ring
    finally:
        gc.set_threshold(*before)
    assert [results.empty((9,), object).tolist() for _ in range(3)] == [[None] * 9] * 3
