"""What every Backend must do, as plain functions that run in any kind of rank."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
from link_checks import DTYPES, Rank

from workbench.collectives.reduction import narrow, widen
from workbench.core.backend.base import Backend, Reduction, Traffic

OPS = {"sum": np.add.reduce, "average": np.add.reduce, "min": np.min, "max": np.max, "product": np.multiply.reduce}


def numbers(rank: int, length: int, dtype: str) -> np.ndarray:
    """A rank's data: whole numbers so small that no dtype rounds or overflows."""
    low, high = (0, 2) if dtype == "bool" else (0, 3) if dtype.startswith("u") else (-2, 3)
    return np.random.default_rng(100 + rank).integers(low, high, length).astype(np.float64)


def array_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as they travel."""
    return narrow(values.astype(np.float32)) if dtype == "bfloat16" else values.astype(dtype)


def values_of(array: np.ndarray, dtype: str) -> np.ndarray:
    """Undo :func:`array_of`."""
    return (widen(array) if dtype == "bfloat16" else array).astype(np.float64)


def reduced(size: int, length: int, op: str, dtype: str) -> np.ndarray:
    """What numpy makes of all ranks' data."""
    result = OPS[op](np.stack([numbers(rank, length, dtype) for rank in range(size)]), axis=0)
    return np.minimum(result, 1) if dtype == "bool" else result


def same_bits(backend: Backend, array: np.ndarray) -> bool:
    """Has every rank the same bits?"""
    mine = np.frombuffer(array.tobytes(), np.uint8)
    everything = np.zeros(len(mine) * backend.size, np.uint8)
    everything[backend.rank * len(mine) : (backend.rank + 1) * len(mine)] = mine
    backend.collectives.allgather(everything, [len(mine)] * backend.size)
    return len({piece.tobytes() for piece in np.split(everything, backend.size)}) == 1


def a_backend_knows_its_ranks(rank: Rank) -> None:
    """The backend of all ranks has the Link's numbers, and every global rank has its own number."""
    backend = rank.backend
    assert (backend.rank, backend.size) == (rank.link.rank, rank.link.size)
    assert [backend.ranks.index(each) for each in range(backend.size)] == list(range(backend.size))


def allreduce_is_numpys(rank: Rank) -> None:
    """Every op and dtype gives numpy's result in place on every rank, for any length; alone, nothing is sent."""
    backend = rank.backend
    for dtype in DTYPES:
        for op in OPS:
            for length in (0, 1, backend.size + 1, 1000) if dtype == "float32" else (backend.size - 1, 1000):
                array = array_of(numbers(backend.rank, length, dtype), dtype)
                traffic = backend.collectives.allreduce(array, Reduction(op, dtype))
                expected = reduced(backend.size, length, op, dtype)
                np.testing.assert_array_equal(values_of(array, dtype), expected, err_msg=f"{op} of {length} {dtype}")
                assert isinstance(traffic, Traffic)
                assert backend.size > 1 or not traffic.messages


def long_allreduces_are_numpys(rank: Rank) -> None:
    """The same for arrays that are too long for an algorithm made for short ones."""
    backend = rank.backend
    for dtype in ("float32", "bfloat16", "int64"):
        array = array_of(numbers(backend.rank, 40_001, dtype), dtype)
        backend.collectives.allreduce(array, Reduction("sum", dtype))
        np.testing.assert_array_equal(values_of(array, dtype), reduced(backend.size, 40_001, "sum", dtype))


def values_may_lie_elsewhere(rank: Rank) -> None:
    """On some ranks or on all: they are reduced into the array, and stay as they are."""
    backend = rank.backend
    for dtype, length in product(("float32", "int64"), (0, 1, 1000, 40_001, 1_000_003)):
        given, expected = (
            numbers(backend.rank, length, dtype).astype(dtype),
            reduced(backend.size, length, "sum", dtype),
        )
        for elsewhere in (range(backend.size), [0], [backend.size - 1]):
            array = np.full(length, 77, dtype) if backend.rank in elsewhere else given.copy()
            source = given if backend.rank in elsewhere else None
            backend.collectives.allreduce(array, Reduction("average", dtype, 2.0, 3.0, 2), (), source)
            np.testing.assert_array_equal(array, 3 * expected)
            np.testing.assert_array_equal(given, numbers(backend.rank, length, dtype))


def very_long_arrays_arrive(rank: Rank) -> None:
    """Arrays of many segments are reduced, averaged and broadcast, from every root and right after one another."""
    backend, length = rank.backend, 1_000_003
    for dtype in ("float32", "int64"):
        array, mean = numbers(backend.rank, length, dtype).astype(dtype), Reduction("average", dtype, 2.0, 3.0, 2)
        backend.collectives.allreduce(array, mean)
        np.testing.assert_array_equal(array, 3 * reduced(backend.size, length, "sum", dtype))
        for root in range(backend.size):
            array = numbers(backend.rank, length, dtype).astype(dtype)
            backend.collectives.broadcast(array, root)
            np.testing.assert_array_equal(array, numbers(root, length, dtype))


def rounding_is_the_same_everywhere(rank: Rank) -> None:
    """Where adding rounds, the sum is near the exact one and has the same bits on all ranks."""
    backend = rank.backend
    for dtype, eps in (("float32", 2**-23), ("float64", 2**-52), ("float16", 2**-10), ("bfloat16", 2**-7)):
        for length in (100, 20_000):
            data = [np.random.default_rng(each).normal(size=length) for each in range(backend.size)]
            array = array_of(data[backend.rank], dtype)
            backend.collectives.allreduce(array, Reduction("sum", dtype))
            bound = (backend.size + 1) * eps * np.abs(data).sum(axis=0)
            assert (abs(values_of(array, dtype) - np.sum(data, axis=0)) <= bound).all()
            assert same_bits(backend, array)


def allgather_concatenates(rank: Rank) -> None:
    """Every rank ends with all parts in the order of the ranks, however uneven, empty ones too."""
    backend = rank.backend
    for lengths in ([3] * backend.size, [0] * backend.size, [5 * i for i in range(backend.size)]):
        for dtype in ("int16", "float64", "bool"):
            array = np.zeros(sum(lengths), dtype)
            start = sum(lengths[: backend.rank])
            array[start : start + lengths[backend.rank]] = backend.rank + 1
            backend.collectives.allgather(array, lengths)
            expected = np.repeat(np.arange(1, backend.size + 1), lengths).astype(dtype)
            np.testing.assert_array_equal(array, expected)


def broadcast_copies(rank: Rank) -> None:
    """Every rank ends with the root's bits, for every root, whether they are in its array before or elsewhere."""
    backend = rank.backend
    for root in range(backend.size):
        for length in (0, 1, 50_000, 700_000):
            array, expected = np.full(length, np.nan), np.random.default_rng(root).normal(size=length)
            source = expected.copy() if backend.rank == root else None
            backend.collectives.broadcast(array, root, source)
            np.testing.assert_array_equal(array, expected)
            if source is not None:
                np.testing.assert_array_equal(source, expected)
            array += backend.rank - root
            backend.collectives.broadcast(array, root)
            np.testing.assert_array_equal(array, expected)


def alltoall_transposes(rank: Rank) -> None:
    """Piece i of rank r arrives as piece r of rank i, with all kinds of lengths."""
    backend, n = rank.backend, rank.backend.size
    for lengths in (np.ones((n, n), int), np.zeros((n, n), int), np.add.outer(np.arange(n), 3 * np.arange(n))):
        me = backend.rank
        send = np.concatenate([1000 * me + 10 * to + np.arange(lengths[me, to]) % 10 for to in range(n)])
        recv = np.full(lengths[:, me].sum(), -1, send.dtype)
        backend.collectives.alltoall(send, list(lengths[me]), recv, list(lengths[:, me]))
        expected = [1000 * source + 10 * me + np.arange(lengths[source, me]) % 10 for source in range(n)]
        np.testing.assert_array_equal(recv, np.concatenate(expected))


def reducescatter_gives_each_its_part(rank: Rank) -> None:
    """Each rank's part of the array holds the reduction of everybody's part."""
    backend, n = rank.backend, rank.backend.size
    for lengths in ([4] * n, [0] * n, [3 * i for i in range(n)], [9] + [0] * (n - 1)):
        for op, dtype in (("sum", "float32"), ("max", "int64"), ("sum", "bfloat16"), ("min", "float64")):
            total, start = sum(lengths), sum(lengths[: backend.rank])
            array = array_of(numbers(backend.rank, total, dtype), dtype)
            backend.collectives.reducescatter(array, lengths, Reduction(op, dtype))
            part = slice(start, start + lengths[backend.rank])
            np.testing.assert_array_equal(values_of(array, dtype)[part], reduced(n, total, op, dtype)[part])


def buffers_can_be_reduced(rank: Rank) -> None:
    """A buffer has room for what was asked, can be seen as any dtype and reduced where it lies, again and again."""
    backend = rank.backend
    for nbytes in (8, 80_000, 16, 0, 160_000):
        array = backend.shared.buffer(nbytes)
        assert (array.ndim, array.dtype, array.flags.c_contiguous, array.flags.writeable) == (1, np.uint8, True, True)
        assert len(array) == nbytes
        for dtype in ("float64", "float32"):
            view = array.view(dtype)
            view[:] = backend.rank + 1
            backend.collectives.allreduce(view, Reduction("sum", dtype))
            assert (view == sum(range(1, backend.size + 1))).all()


def offsets(backend: Backend, array: np.ndarray) -> list[int]:
    """Every rank's place of its array; empty if one of them has none, as in a response."""
    found = np.zeros(backend.size, np.int64)
    found[backend.rank] = backend.shared.offset(array)
    backend.collectives.allgather(found, [1] * backend.size)
    return [] if -1 in found else found.tolist()


def memory_of_the_backend_is_reduced(rank: Rank) -> None:
    """What the backend allocates is memory like other memory, and is reduced and scattered where it lies."""
    backend, n = rank.backend, rank.backend.size
    assert backend.shared.offset(np.ones(3)) == -1
    for length in (0, 1, n + 1, 40_001, 700_000):
        memory = backend.shared.allocate(4 * length)
        assert (memory.ndim, memory.dtype, memory.flags.c_contiguous, memory.flags.writeable) == (
            1,
            np.uint8,
            True,
            True,
        )
        assert len(memory) == 4 * length
        array, expected = memory.view(np.float32), reduced(n, length, "sum", "float32")
        array[:] = numbers(backend.rank, length, "float32")
        backend.collectives.allreduce(array, Reduction("sum", "float32"), offsets(backend, array))
        np.testing.assert_array_equal(array, expected)
        array[:] = numbers(backend.rank, length, "float32")
        lengths = [length // n + (i < length % n) for i in range(n)]
        backend.collectives.reducescatter(array, lengths, Reduction("sum", "float32"), offsets(backend, array))
        part = slice(sum(lengths[: backend.rank]), sum(lengths[: backend.rank + 1]))
        np.testing.assert_array_equal(array[part], expected[part])


def some_ranks_work_alone(rank: Rank) -> None:
    """The backend of a part of the ranks reduces among these and is closed; then all work together again."""
    backend = rank.backend
    some = list(range(1, backend.size)) or [0]
    if backend.rank in some:
        part = backend.life.subset(some)
        assert (part.rank, part.size) == (some.index(backend.rank), len(some))
        assert [part.ranks.index(each) for each in some] == list(range(len(some)))
        array = np.full(5000, float(backend.rank))
        part.collectives.allreduce(array, Reduction("sum", "float64"))
        assert (array == sum(some)).all()
        part.collectives.broadcast(array, part.size - 1)
        part.life.close()
    together = np.ones(3)
    backend.collectives.allreduce(together, Reduction("sum", "float64"))
    assert (together == backend.size).all()


def a_backend_ends(rank: Rank) -> None:
    """All ranks close it at the same point, which takes nobody's patience. It is the last check in its world."""
    started = time.monotonic()
    rank.backend.collectives.allreduce(np.ones(1), Reduction("sum", "float64"))
    rank.backend.life.close()
    assert time.monotonic() - started < 10


BACKEND_CHECKS = [
    a_backend_knows_its_ranks,
    allreduce_is_numpys,
    long_allreduces_are_numpys,
    values_may_lie_elsewhere,
    very_long_arrays_arrive,
    rounding_is_the_same_everywhere,
    allgather_concatenates,
    broadcast_copies,
    alltoall_transposes,
    reducescatter_gives_each_its_part,
    buffers_can_be_reduced,
    memory_of_the_backend_is_reduced,
    some_ranks_work_alone,
]
