"""Every algorithm of the shared-memory backend, bit by bit against one thread that adds rank after rank."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from memory_world import DTYPES, FUSION_BYTES, backends, drawn, placed, serial
from thorough import quick

from workbench.collectives.reduction import Reduction, wire_dtype
from workbench.collectives.ring import chunk_lengths
from workbench.collectives.shared_memory import BLOCK_BYTES
from workbench.core.backend.base import Backend
from workbench.core.execute import execute
from workbench.core.handle import Handle
from workbench.core.messages import Kind, ReduceOp, Request, Response
from workbench.core.pending import Entry
from workbench.runtime.trace.timeline import Timeline
from workbench.transport.shm import collectives as shm
from workbench.transport.shm.staged import SEGMENT_BYTES

pytestmark = pytest.mark.long

WORLDS = [2, 3, 4]
WAYS = ["in place", "copied", "from a source", "fusion buffer"]
REDUCTIONS = {
    "sum": lambda dtype, n: Reduction("sum", dtype),
    "scaled average": lambda dtype, n: Reduction("average", dtype, 0.5, 3.0, n),
    "max": lambda dtype, n: Reduction("max", dtype),
}


def reduce(backend: Backend, way: str, array: np.ndarray, reduction: Reduction) -> np.ndarray:
    """Reduce a copy of the array in one of the ways."""
    with np.errstate(all="ignore"):
        if way == "in place":
            mine, places = placed(backend, array)
            backend.collectives.allreduce(mine, reduction, places)
            return mine
        if way == "copied":
            mine = array.copy()
            backend.collectives.allreduce(mine, reduction)
            return mine
        if way == "from a source":
            mine = np.empty_like(array)
            backend.collectives.allreduce(mine, reduction, (), array)
            return mine
        mine = backend.shared.buffer(array.nbytes).view(array.dtype)
        mine[:] = array
        backend.collectives.allreduce(mine, reduction)
        return mine.copy()


def lengths_around(limits: list[int], itemsize: int) -> list[int]:
    """One element less, as many as fit, and one more."""
    return [limit // itemsize + more for limit in limits for more in (-1, 0, 1)]


# --- allreduce ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", quick(WORLDS, 3))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_the_bits_are_those_of_a_serial_loop(name: str, way: str, n: int) -> None:
    """For every dtype, and for lengths with which some ranks have empty chunks."""

    def run(backend: Backend) -> list[str]:
        wrong = []
        for dtype in DTYPES:
            reduction = REDUCTIONS[name]("uint8" if dtype == "bool" else dtype, n)
            if dtype == "bool":
                reduction = Reduction("max", dtype)
            for length in (1, 2, 3, n + 1, 1000):
                result = reduce(backend, way, drawn(backend.rank, length, dtype), reduction)
                if result.tobytes() != serial(range(n), length, reduction).tobytes():
                    wrong.append(f"{length} {dtype}")
        return wrong

    assert backends(n, run) == [[]] * n


@pytest.mark.parametrize("n", quick(WORLDS, 3))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8"])
def test_around_the_limits(dtype: str, way: str, n: int) -> None:
    """One element less, as many, and one more than go the short way, into a block, into one segment, into three."""
    itemsize, reduction = wire_dtype(dtype).itemsize, Reduction("sum", dtype)
    limits = [shm._SHORT_BYTES, BLOCK_BYTES, n * BLOCK_BYTES, SEGMENT_BYTES]
    lengths = lengths_around(limits, itemsize)
    if way != "fusion buffer":
        lengths += lengths_around([3 * SEGMENT_BYTES], itemsize)[-1:]
    wanted = {length: serial(range(n), length, reduction).tobytes() for length in lengths}

    def run(backend: Backend) -> list[int]:
        results = {
            length: reduce(backend, way, drawn(backend.rank, length, dtype), reduction).tobytes() for length in lengths
        }
        return [length for length in lengths if results[length] != wanted[length]]

    assert backends(n, run, FUSION_BYTES + 64) == [[]] * n


def test_all_ways_in_turns() -> None:
    """One collective after the other, each in another way and size, with ranks that are slow now and then."""
    plan = [(random.Random(i).choice(WAYS), random.Random(i).choice((1, 5, 5000, 300_000))) for i in range(75)]
    reduction = Reduction("sum", "float32")
    wanted = [serial(range(3), length, reduction, seed=i).tobytes() for i, (_, length) in enumerate(plan)]

    def run(backend: Backend) -> list[int]:
        dice, wrong = random.Random(backend.rank), []
        for i, (way, length) in enumerate(plan):
            if dice.random() < 0.1:
                time.sleep(dice.random() / 200)
            mine = reduce(backend, way, drawn(backend.rank, min(length, 250_000), "float32", seed=i), reduction)
            if length <= 250_000 and mine.tobytes() != wanted[i]:
                wrong.append(i)
        return wrong

    assert backends(3, run) == [[]] * 3


@pytest.mark.parametrize("n", quick(WORLDS, 3))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_many_arrays_where_they_lie(dtype: str, n: int) -> None:
    """Of any lengths, some empty, some over several segments, in any order: each has the serial bits."""
    itemsize, reduction = wire_dtype(dtype).itemsize, Reduction("average", dtype, 0.5, divisor=n)
    segment = SEGMENT_BYTES // itemsize
    rows = [[1], [0, 3, 0, 5], [10_000] * 40, [segment - 1, 2, segment], [2 * segment + 5, 1, 1], [n - 1] * 7]
    dice = random.Random(1)
    rows += [[dice.choice((1, 100, 7000, segment // 3)) for _ in range(20)] for _ in range(3)]

    def run(backend: Backend) -> list[tuple[int, int]]:
        wrong = []
        assert backend.batches is not None
        for seed, row in enumerate(rows):
            arrays = [drawn(backend.rank, length, dtype, seed + i) for i, length in enumerate(row)]
            sources = arrays
            if backend.rank % 2:  # others reduce in place
                arrays = [np.empty_like(array) for array in sources]
            backend.batches.allreduce_batch(arrays, reduction, sources)
            for i, array in enumerate(arrays):
                if array.tobytes() != serial(range(n), row[i], reduction, seed=seed + i).tobytes():
                    wrong.append((seed, i))
        return wrong

    assert backends(n, run) == [[]] * n


def test_an_array_that_is_in_flight_twice() -> None:
    """In place and, in the same batch, not: the second has what was there when the batch began."""
    shape = (SEGMENT_BYTES // 2,)

    def run(backend: Backend) -> list[float]:
        array, target = np.ones(shape, np.float32), np.empty(shape, np.float32)
        batch = [Response(name, Kind.ALLREDUCE, "float32", shape, ReduceOp.SUM) for name in "ab"]
        asked = [Request(name, Kind.ALLREDUCE, "float32", shape) for name in "ab"]
        entries = [Entry(one, array, into, Handle("x")) for one, into in zip(asked, (array, target), strict=True)]
        return [float(value) for each in execute(batch, entries, backend, Timeline()) for value in (each[0], each[-1])]

    assert backends(2, run) == [[2.0] * 4] * 2


# --- the other verbs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", quick(WORLDS, 3))
@pytest.mark.parametrize("prescale", [1.0, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_reducescatter_in_place(dtype: str, prescale: float, n: int) -> None:
    """Each rank's part has the serial bits, however the parts are cut; the rest of the array is as it was."""
    reduction = Reduction("average", dtype, prescale, divisor=n)

    def run(backend: Backend) -> list[list[int]]:
        wrong = []
        cuts = [chunk_lengths(length, n) for length in (1, n, 1000, BLOCK_BYTES)]
        for lengths in [*cuts, [0] * (n - 1) + [50], [50] + [0] * (n - 1)]:
            data = drawn(backend.rank, sum(lengths), dtype)
            mine, places = placed(backend, data)
            backend.collectives.reducescatter(mine, lengths, reduction, places)
            start = sum(lengths[: backend.rank])
            part = slice(start, start + lengths[backend.rank])
            data[part] = serial(range(n), sum(lengths), reduction)[part]
            if mine.tobytes() != data.tobytes():
                wrong.append(lengths)
        return wrong

    assert backends(n, run) == [[]] * n


@pytest.mark.parametrize("n", quick(WORLDS, 3))
def test_allgather_across_the_segment_size(n: int) -> None:
    """Parts that are shorter, as long and longer than a segment, uneven ones and empty ones, arrive bit by bit."""
    most = SEGMENT_BYTES // 4
    shapes = [[length] * n for length in (0, 1, most - 1, most, most + 1)]
    shapes += [[0] * (n - 1) + [2 * most + 3], [most + 1] + [0] * (n - 1), [i * most // 2 + i for i in range(n)]]

    def run(backend: Backend) -> list[list[int]]:
        wrong = []
        for lengths in shapes:
            parts = [drawn(rank, length, "float32") for rank, length in enumerate(lengths)]
            array = np.zeros(sum(lengths), np.float32)
            start = sum(lengths[: backend.rank])
            array[start : start + lengths[backend.rank]] = parts[backend.rank]
            backend.collectives.allgather(array, lengths)
            if array.tobytes() != np.concatenate(parts).tobytes():
                wrong.append(lengths)
        return wrong

    assert backends(n, run) == [[]] * n


@pytest.mark.parametrize("n", quick(WORLDS, 3))
@pytest.mark.parametrize("dtype", ["float64", "bool", "uint16"])
def test_broadcast_across_the_segment_size(dtype: str, n: int) -> None:
    """Every root's bits arrive, for arrays of less than a segment, a whole one, and several."""
    most = SEGMENT_BYTES // np.dtype(dtype).itemsize

    def run(backend: Backend) -> list[tuple[int, int]]:
        wrong = []
        for length in (0, 1, most - 1, most, most + 1, 2 * most + 1):
            for root in range(n):
                array = drawn(backend.rank, length, dtype)
                backend.collectives.broadcast(array, root)
                if array.tobytes() != drawn(root, length, dtype).tobytes():
                    wrong.append((length, root))
        return wrong

    assert backends(n, run) == [[]] * n


# --- memory -------------------------------------------------------------------------------------------


def test_after_the_end_memory_is_ordinary() -> None:
    """A closed backend still gives arrays, which lie nowhere in particular; arrays of before keep their values."""

    def run(backend: Backend) -> tuple[int, float]:
        before = backend.shared.allocate(800).view("float64")
        before[:] = 3.0
        backend.collectives.allreduce(np.ones(1), Reduction("sum", "float64"))
        backend.life.close()
        after = backend.shared.allocate(100)
        after[:] = 1
        return backend.shared.offset(after) + backend.shared.offset(before), before.sum()

    assert backends(2, run) == [(-2, 300.0)] * 2
