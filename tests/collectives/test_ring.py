"""The ring algorithms over threads: results against numpy, and the messages and bytes that the docstrings promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from loading import EXAMPLES, load

from workbench.collectives import Traffic, ring_allgather, ring_allreduce, ring_reduce_scatter
from workbench.collectives.reduction import combine_for, narrow, widen
from workbench.collectives.ring import chunk_lengths, cut, naive_allreduce
from workbench.transport.host.threads import ThreadLink, spawn

RINGS = [ring_allreduce, load("nano", EXAMPLES).ring_allreduce]
of_every_ring = pytest.mark.parametrize("ring", RINGS, ids=["workbench", "nano"])
WORLDS = [1, 2, 3, 4, 5, 8]
OPS = {"sum": np.add.reduce, "min": np.min, "max": np.max, "product": np.multiply.reduce, "average": np.add.reduce}
DTYPES = ["float32", "float64", "int64", "float16", "bfloat16"]


@dataclass
class CountingLink:
    """A Link around another that writes down what is sent, whatever the algorithm says about itself."""

    link: ThreadLink
    sent: list[tuple[int, int]] = field(default_factory=list)  # (to whom, how many bytes)

    @property
    def rank(self) -> int:
        """The inner Link's."""
        return self.link.rank

    @property
    def size(self) -> int:
        """The inner Link's."""
        return self.link.size

    def sendrecv(self, send: np.ndarray | None, dest: int, recv: np.ndarray | None, source: int) -> None:
        """Count and pass on."""
        if send is not None:
            self.sent.append((dest, len(send.tobytes())))
        self.link.sendrecv(send, dest, recv, source)

    def traffic(self) -> Traffic:
        """What was sent."""
        return Traffic(len(self.sent), sum(nbytes for _, nbytes in self.sent))

    def agrees_with(self, traffic: Traffic) -> bool:
        """Does the algorithm's own count hold?"""
        return traffic == self.traffic()


def lengths(n: int) -> list[int]:
    """None, one, about as many as ranks, and many elements."""
    return sorted({0, 1, n - 1, n, n + 1, 1000})


def values(rank: int, length: int) -> np.ndarray:
    """A rank's data, as whole numbers so small that every order of adding or multiplying gives the same bits."""
    return np.random.default_rng(rank).integers(-2, 3, length).astype(np.float64)


def array_of(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as an array of a dtype, as it travels."""
    return narrow(numbers.astype(np.float32)) if dtype == "bfloat16" else numbers.astype(dtype)


def numbers_of(array: np.ndarray, dtype: str) -> np.ndarray:
    """Undo :func:`array_of`."""
    return (widen(array) if dtype == "bfloat16" else array).astype(np.float64)


@of_every_ring
@pytest.mark.parametrize("n", WORLDS)
def test_allreduce_is_numpys_reduction(n: int, ring: Callable[..., Any]) -> None:
    """For every length, op and dtype each rank ends with numpy's reduction of all data, and with the same bits."""
    cases = [(length, op, dtype) for length in lengths(n) for op in OPS for dtype in DTYPES]

    def run(link: ThreadLink) -> list[np.ndarray]:
        results = []
        for length, op, dtype in cases:
            array = array_of(values(link.rank, length), dtype)
            ring(link, array, combine_for(op, dtype))
            results.append(array)
        return results

    ranks = spawn(n, run)
    for i, (length, op, dtype) in enumerate(cases):
        expected = OPS[op](np.stack([values(rank, length) for rank in range(n)]), axis=0)
        np.testing.assert_array_equal(numbers_of(ranks[0][i], dtype), expected, err_msg=f"{op} of {length} {dtype}")
        for other in ranks[1:]:
            assert other[i].tobytes() == ranks[0][i].tobytes()


@of_every_ring
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_rounding_is_the_same_on_all_ranks(dtype: str, ring: Callable[..., Any]) -> None:
    """Where adding rounds, the sum is near the exact one, and still has the same bits on every rank."""
    n, length = 5, 1001
    data = [np.random.default_rng(rank).normal(size=length) for rank in range(n)]

    def run(link: ThreadLink) -> np.ndarray:
        array = array_of(data[link.rank], dtype)
        ring(link, array, combine_for("sum", dtype))
        return array

    ranks = spawn(n, run)
    assert len({array.tobytes() for array in ranks}) == 1
    eps = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
    magnitude = np.abs(np.stack(data)).sum(axis=0)
    assert (abs(numbers_of(ranks[0], dtype) - np.sum(data, axis=0)) <= n * eps * magnitude).all()


@of_every_ring
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_allreduce_sends_what_it_promises(n: int, dtype: str, ring: Callable[..., Any]) -> None:
    """2(n - 1) messages to the right neighbour, and the bytes of all chunks but two: 2(n - 1)/n · K."""
    for length in lengths(n):

        def run(link: ThreadLink, length: int = length) -> tuple[CountingLink, Traffic | None]:
            counting = CountingLink(link)
            return counting, ring(counting, np.ones(length, dtype))

        itemsize = np.dtype(dtype).itemsize
        chunks = [len(range(r, length, n)) * itemsize for r in range(n)]
        for rank, (counting, said) in enumerate(spawn(n, run)):
            assert [dest for dest, _ in counting.sent] == [(rank + 1) % n] * (2 * (n - 1))
            traffic = said or counting.traffic()  # that of nano.py does not count
            assert counting.agrees_with(traffic)
            if n > 1:
                # Of its two rounds over all chunks, a rank leaves out the one that it ends the first round with, and
                # the one that its right neighbour has already.
                assert traffic.bytes == 2 * length * itemsize - chunks[(rank + 1) % n] - chunks[(rank + 2) % n]
            assert abs(traffic.bytes - 2 * (n - 1) / n * length * itemsize) <= 2 * itemsize


@pytest.mark.parametrize("n", WORLDS)
def test_reduce_scatter_gives_each_rank_its_chunk(n: int) -> None:
    """Rank r ends with the sum of everybody's chunk r, also where chunks are empty or uneven; n - 1 messages."""
    for some in ([2] * n, [0] * n, list(range(n)), [7] + [0] * (n - 1), chunk_lengths(1000, n)):
        total = sum(some)

        def run(
            link: ThreadLink, some: list[int] = some, total: int = total
        ) -> tuple[np.ndarray, CountingLink, Traffic]:
            counting, array = CountingLink(link), values(link.rank, total)
            traffic = ring_reduce_scatter(counting, array, some)
            return cut(array, some)[link.rank].copy(), counting, traffic

        expected = np.sum([values(rank, total) for rank in range(n)], axis=0)
        for rank, (mine, counting, traffic) in enumerate(spawn(n, run)):
            np.testing.assert_array_equal(mine, np.split(expected, np.cumsum(some)[:-1])[rank])
            assert counting.agrees_with(traffic)
            assert traffic.messages == n - 1
            assert traffic.bytes == (total - some[rank]) * 8


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize("dtype", ["int64", "bool", "uint16"])
def test_allgather_concatenates(n: int, dtype: str) -> None:
    """Every rank ends with all chunks in the order of the ranks, however uneven; n - 1 messages."""
    for some in ([3] * n, [0] * n, list(range(n)), [0] * (n - 1) + [5]):

        def run(link: ThreadLink, some: list[int] = some) -> tuple[np.ndarray, CountingLink, Traffic]:
            counting, array = CountingLink(link), np.zeros(sum(some), dtype)
            cut(array, some)[link.rank][:] = link.rank + 1
            return array, counting, ring_allgather(counting, array, some)

        expected = np.repeat(np.arange(1, n + 1), some).astype(dtype)
        for rank, (array, counting, traffic) in enumerate(spawn(n, run)):
            np.testing.assert_array_equal(array, expected)
            assert counting.agrees_with(traffic)
            assert traffic.messages == n - 1
            # All chunks but that of its right neighbour, which has it already.
            assert n == 1 or traffic.bytes == (sum(some) - some[(rank + 1) % n]) * np.dtype(dtype).itemsize


@pytest.mark.parametrize("n", WORLDS)
def test_the_naive_way_gives_the_same(n: int) -> None:
    """The naive allreduce is right as well, and shows its cost: rank 0 sends n - 1 messages, the others one."""

    def run(link: ThreadLink) -> tuple[np.ndarray, np.ndarray, CountingLink, Traffic]:
        counting, naive, ring = CountingLink(link), values(link.rank, 50), values(link.rank, 50)
        traffic = naive_allreduce(counting, naive)
        ring_allreduce(link, ring)
        return naive, ring, counting, traffic

    for rank, (naive, ring, counting, traffic) in enumerate(spawn(n, run)):
        np.testing.assert_array_equal(naive, ring)
        assert counting.agrees_with(traffic)
        assert traffic.messages == (n - 1 if rank == 0 else 1)


@pytest.mark.parametrize("n", WORLDS)
def test_chunks_share_evenly(n: int) -> None:
    """Chunks cover the array in order without a gap, and differ by one element at most, the longer ones first."""
    for length in lengths(n):
        some = chunk_lengths(length, n)
        assert (len(some), sum(some), some) == (n, length, sorted(some, reverse=True))
        assert max(some) - min(some) <= 1
        array = np.arange(length)
        pieces = cut(array, some)
        np.testing.assert_array_equal(np.concatenate(pieces), array)
        assert all(piece.base is array for piece in pieces)


@pytest.mark.parametrize("algorithm", [*RINGS, naive_allreduce], ids=["workbench", "nano", "naive"])
def test_a_failing_rank_releases_the_others(algorithm: Callable[[Any, np.ndarray], Traffic]) -> None:
    """When one rank raises in the midst of a collective, the world ends with its exception instead of hanging."""

    def run(link: ThreadLink) -> None:
        if link.rank == 1:
            raise ZeroDivisionError("rank 1")
        algorithm(link, np.ones(4))

    with pytest.raises(ZeroDivisionError, match="rank 1"):
        spawn(3, run, timeout_s=20)
