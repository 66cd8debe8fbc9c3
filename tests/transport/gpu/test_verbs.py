"""Every verb on arrays that lie on made-up GPUs: the numbers are numpy's, and each way issues what it is for."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gpu_world import ONE_WAY, WAYS, begin, made, made_up, ranks, run, slow_bus
from thorough import once_more

import workbench as hvd
from workbench.collectives import ring_allreduce
from workbench.collectives.reduction import Reduction, narrow, widen
from workbench.core.backend.base import Backend
from workbench.core.handle import Handle
from workbench.core.messages import Kind, ReduceOp
from workbench.job.entries import submit
from workbench.transport.gpu import kernels
from workbench.transport.gpu.device import Gpu
from workbench.transport.gpu.nccl import Nccl, nccl_backend
from workbench.transport.host.threads import ThreadLink, spawn
from workbench.transport.links import link_backend

pytestmark = pytest.mark.long

FLOATS = ["float16", "bfloat16", "float32", "float64"]
DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", *FLOATS]
NOT_NCCL = ("int16", "uint16")
OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
EVERYWHERE = pytest.mark.parametrize(
    ("way", "n"), [("nccl", 2), ("staged", 2), ("mpi", 2), once_more("nccl", 4), once_more("staged", 4)]
)


# --- data, and what numpy makes of it -------------------------------------------------------------------


def drawn(rank: int, shape: Sequence[int], dtype: str, small: bool = True) -> np.ndarray:
    """A rank's data: small numbers, which no order of reducing rounds; or integers that overflow."""
    dice = np.random.default_rng([rank, *shape])
    if small or dtype in (*FLOATS, "bool"):
        low, high = (0, 2) if dtype == "bool" else (0, 5) if dtype.startswith("u") else (-4, 5)
        return dice.integers(low, high, shape).astype("float32" if dtype == "bfloat16" else dtype)
    info = np.iinfo(dtype)
    return dice.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def reduced(parts: Sequence[np.ndarray], op: ReduceOp, before: float = 1.0, after: float = 1.0) -> np.ndarray:
    """In closed form; integers are cut towards zero."""
    dtype, n = parts[0].dtype, len(parts)
    whole = dtype.kind in "iu"
    cut: Callable[[np.ndarray], np.ndarray] = np.trunc if whole else np.asarray
    if before != 1.0:
        parts = [cut(part * before).astype(dtype) for part in parts]
    if op in (hvd.Sum, hvd.Average):
        total = np.add.reduce(parts, dtype=dtype)
        scale = after / (n if op is hvd.Average else 1)
        return total if scale == 1.0 else cut(total * scale).astype(dtype)
    return {hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}[op].reduce(parts, dtype=dtype)


def put(values: np.ndarray, dtype: str) -> Any:
    """On the GPU; bfloat16 as its bits."""
    import cupy

    return cupy.asarray(narrow(values) if dtype == "bfloat16" else values)


def taken(array: Any, dtype: str) -> np.ndarray:
    """Back from there."""
    return widen(array.get()) if dtype == "bfloat16" else array.get()


def call(kind: Kind, values: np.ndarray, dtype: str, **fields: Any) -> np.ndarray:
    """A verb, from numpy to numpy by way of the GPU; what was given is left as it was."""
    given = put(values, dtype)
    result = begin(kind, given, dtype=dtype, **fields).wait()
    np.testing.assert_array_equal(taken(given, dtype), values)
    return taken(result[0] if isinstance(result, tuple) else result, dtype)


def same(got: np.ndarray, wanted: np.ndarray, what: Any) -> None:
    """Shape, dtype and numbers."""
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), what
    np.testing.assert_array_equal(got, wanted, str(what))


def ops(dtype: str) -> list[ReduceOp]:
    """Those that are defined."""
    return [op for op in OPS if dtype != "bool" or op is not hvd.Average]


def ours(op: ReduceOp, dtype: str) -> bool:
    """Does our ring reduce it, between GPUs that are connected by NCCL?"""
    return dtype in NOT_NCCL or (op in (hvd.Min, hvd.Max) and dtype in FLOATS)


# --- one verb after the other ---------------------------------------------------------------------------


@EVERYWHERE
def test_allreduce(way: str, n: int) -> None:
    """Every dtype, op and factor; scalars and nothing. NCCL reduces what it can, our ring sends the rest."""
    cases: list[tuple[str, ReduceOp, tuple[int, ...], float, float]] = []
    cases += [(dtype, op, (7, 3), 1.0, 1.0) for dtype in DTYPES for op in ops(dtype)]
    cases += [(dtype, hvd.Sum, shape, 1.0, 1.0) for dtype in DTYPES for shape in ((), (0, 2))]
    cases += [(dtype, op, (5,), 0.5, 4.0) for dtype in DTYPES[1:] for op in (hvd.Sum, hvd.Average)]

    def part(rank: int, dtype: str, op: ReduceOp, shape: tuple[int, ...], before: float) -> np.ndarray:
        return drawn(rank, shape, dtype, small=op is hvd.Average or before != 1.0)

    def rank() -> list[np.ndarray]:
        return [
            call(Kind.ALLREDUCE, part(hvd.rank(), dtype, op, shape, x), dtype, op=op, prescale=x, postscale=y)
            for dtype, op, shape, x, y in cases
        ]

    results, log = run(n, rank, way)
    for number, (dtype, op, shape, before, after) in enumerate(cases):
        wanted = reduced([part(r, dtype, op, shape, before) for r in range(n)], op, before, after)
        for each in results:
            same(each[number], wanted, (dtype, op, shape, before))
    filled = [(dtype, op) for dtype, op, shape, *_ in cases if 0 not in shape]
    by_nccl = [op for dtype, op in filled if not ours(op, dtype)]
    issued = log.issued()
    messages = issued.pop("send", 0), issued.pop("recv", 0)
    assert (
        issued
        == {"nccl": {"allReduce": len(by_nccl)}, "staged": {"D2H": len(filled), "H2D": len(filled)}, "mpi": {}}[way]
    )
    most = 2 * (n - 1) * (len(filled) - len(by_nccl)) if way == "nccl" else 0
    assert all(most / 2 <= each <= most for each in messages)  # fewer where chunks are empty


@pytest.mark.parametrize("way", WAYS)
def test_factors_of_half_precision(way: str) -> None:
    """Scaled on the GPU, a float16 tensor has a factor of float16, as in Horovod's kernels; by the host, of float32."""
    factor, values = 0.1915194503788923, np.arange(-100.0, 100.0, dtype=np.float32)

    def rank() -> list[np.ndarray]:
        return [
            call(Kind.ALLREDUCE, values.astype("float16"), "float16", op=hvd.Sum, **{when: factor})
            for when in ("prescale", "postscale")
        ]

    inner = np.float32 if way == "staged" else np.float16
    wanted = [((values * times).astype(inner) * inner(factor)).astype("float16") for times in (1, 2)]
    for before, after in run(2, rank, way)[0]:
        np.testing.assert_array_equal(before, wanted[0] + wanted[0])
        np.testing.assert_array_equal(after, wanted[1])


@pytest.mark.parametrize("way", WAYS)
def test_an_average_of_floats_is_nccls_own(way: str) -> None:
    """So nothing else runs on our stream; it is ours where there are factors, and for whole numbers."""

    def rank() -> None:
        for dtype in ("float32", "bfloat16", "int32"):
            call(Kind.ALLREDUCE, drawn(0, (4,), dtype), dtype, op=hvd.Average)
        call(Kind.ALLREDUCE, drawn(0, (4,), "float32"), "float32", op=hvd.Average, prescale=2.0)

    _, log = run(2, rank, way)
    assert [each["op"] for each in log.calls()] == ([4, 4, 0, 0] if way == "nccl" else [])


# Not over an MPI that takes the GPUs' memory: there float() gives the CPU the factors, which the stand-in refuses.
@pytest.mark.parametrize(("way", "n"), [("nccl", 2), ("staged", 4), once_more("nccl", 4), once_more("staged", 2)])
def test_adasum(way: str, n: int) -> None:
    """The sum of gradients at right angles, and the mean of equal ones. The CPU computes the factors."""

    def rank() -> list[np.ndarray]:
        apart = [np.eye(n, dtype=np.float32)[hvd.rank()] * 3, np.full(5, 6, np.float32)]
        values = [
            (each.astype("float32" if dtype == "bfloat16" else dtype), dtype) for dtype in FLOATS for each in apart
        ]
        return [call(Kind.ALLREDUCE, each, dtype, op=hvd.Adasum) for each, dtype in values]

    results, log = run(n, rank, way)
    for each in results:
        for apart, equal in zip(each[::2], each[1::2], strict=True):
            assert apart.tolist() == [3] * n
            assert equal.tolist() == [6] * 5
    assert log.issued() == {"D2H": 8, "H2D": 8}


@EVERYWHERE
def test_allgather(way: str, n: int) -> None:
    """As many rows on each rank, or not, or none; every dtype."""
    rows = [[2] * n, [(3 * rank) % 4 for rank in range(n)], [0] * (n - 1) + [1], [0] * n]
    cases = [(dtype, counts) for dtype in DTYPES for counts in rows]

    def rank() -> list[np.ndarray]:
        me = hvd.rank()
        return [call(Kind.ALLGATHER, drawn(me, (counts[me], 3), dtype), dtype) for dtype, counts in cases]

    results, log = run(n, rank, way)
    for number, (dtype, counts) in enumerate(cases):
        wanted = np.concatenate([drawn(r, (counts[r], 3), dtype) for r in range(n)])
        for each in results:
            same(each[number], wanted, (dtype, counts))
    # One by one where the numbers of rows differ. Of the staged copies each rank makes one where it has rows.
    one_by_one = sum(count > 0 for counts in rows[1:] for count in counts)
    staged = {"D2H": len(DTYPES), "H2D": 3 * len(DTYPES)}  # rank 0 has rows in the first case only
    nccl = {"allGather": len(DTYPES), "broadcast": len(DTYPES) * one_by_one}
    assert log.issued() == {"nccl": nccl, "staged": staged, "mpi": {}}[way]


@EVERYWHERE
def test_broadcast(way: str, n: int) -> None:
    """From the last rank, every dtype; scalars and nothing."""
    cases = [(dtype, shape) for dtype in DTYPES for shape in ((), (5, 2), (0,))]

    def rank() -> list[np.ndarray]:
        return [call(Kind.BROADCAST, drawn(hvd.rank(), shape, dtype), dtype, root=n - 1) for dtype, shape in cases]

    results, log = run(n, rank, way)
    for number, (dtype, shape) in enumerate(cases):
        for each in results:
            same(each[number], drawn(n - 1, shape, dtype), (dtype, shape))
    filled = 2 * len(DTYPES)
    assert log.issued() == {"nccl": {"broadcast": filled}, "staged": {"H2D": filled}, "mpi": {}}[way]
    assert log.issued(n - 1) == {"nccl": {"broadcast": filled}, "staged": {"D2H": filled}, "mpi": {}}[way]


@EVERYWHERE
def test_alltoall(way: str, n: int) -> None:
    """Even and uneven splits, some of them 0, or all; every dtype."""
    splits = [[[1] * n] * n, [[(r + 2 * c) % 3 for c in range(n)] for r in range(n)], [[0] * n] * n]
    cases = [(dtype, split) for dtype in DTYPES for split in splits]

    def sent(rank: int, dtype: str, split: list[list[int]]) -> np.ndarray:
        return drawn(rank, (sum(split[rank]), 2), dtype)

    def rank() -> list[np.ndarray]:
        me = hvd.rank()
        return [call(Kind.ALLTOALL, sent(me, dtype, split), dtype, splits=split[me]) for dtype, split in cases]

    results, log = run(n, rank, way)
    for number, (dtype, split) in enumerate(cases):
        for me, each in enumerate(results):
            pieces = [np.split(sent(r, dtype, split), np.cumsum(split[r])[:-1])[me] for r in range(n)]
            same(each[number], np.concatenate(pieces), (dtype, split))
    sends = sum(count > 0 for split in splits for count in split[0])
    receives = sum(row[0] > 0 for split in splits for row in split)
    nccl = {"send": len(DTYPES) * sends, "recv": len(DTYPES) * receives}
    staged = {"D2H": 2 * len(DTYPES), "H2D": 2 * len(DTYPES)}
    assert log.issued() == {"nccl": nccl, "staged": staged, "mpi": {}}[way]


@EVERYWHERE
def test_reducescatter(way: str, n: int) -> None:
    """Rows that the number of ranks divides, or not; fewer rows than ranks; none. Every dtype and op."""
    cases = [(dtype, op, 2 * n) for dtype in DTYPES for op in ops(dtype)]
    cases += [(dtype, hvd.Sum, rows) for dtype in DTYPES for rows in (n + 1, 1, 0)]

    def rank() -> list[np.ndarray]:
        return [call(Kind.REDUCESCATTER, drawn(hvd.rank(), (rows, 3), d), d, op=op) for d, op, rows in cases]

    results, log = run(n, rank, way)
    for number, (dtype, op, rows) in enumerate(cases):
        total = reduced([drawn(r, (rows, 3), dtype) for r in range(n)], op)
        for each, wanted in zip(results, np.array_split(total, n), strict=True):
            same(each[number], wanted, (dtype, op, rows))
    filled = [(dtype, op, rows) for dtype, op, rows in cases if rows]
    nccl = [rows for dtype, op, rows in filled if not ours(op, dtype)]
    issued = log.issued()
    messages = issued.pop("send", 0), issued.pop("recv", 0)
    assert (
        issued
        == {
            "nccl": {"reduceScatter": nccl.count(2 * n), "reduce": n * nccl.count(n + 1) + nccl.count(1)},
            "staged": {"D2H": len(filled), "H2D": len(filled)},
            "mpi": {},
        }[way]
    )
    most = (n - 1) * (len(filled) - len(nccl)) if way == "nccl" else 0
    assert all(most / 2 <= each <= most for each in messages)


@ONE_WAY
def test_a_job_of_one_rank(way: str) -> None:
    """Every verb gives back what it was given, of every dtype."""

    def rank() -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for dtype in DTYPES:
            values = drawn(0, (3, 2), dtype)
            found += [(call(Kind.ALLREDUCE, values, dtype, op=op), values) for op in ops(dtype)]
            found += [(call(kind, values, dtype), values) for kind in (Kind.ALLGATHER, Kind.ALLTOALL)]
            found.append((call(Kind.BROADCAST, values, dtype, root=0), values))
            found.append((call(Kind.REDUCESCATTER, values, dtype, op=hvd.Sum), values))
        return found

    for got, wanted in run(1, rank, way)[0][0]:
        same(got, wanted, way)


def test_arrays_that_are_not_contiguous() -> None:
    """Are copied, on the GPU, in the order of the caller's stream."""

    def rank() -> list[Any]:
        import cupy

        values = drawn(hvd.rank(), (4, 6), "float32")
        odd = [put(values, "float32").T, put(values, "float32")[::2, 1:3]]
        cupy.cuda.Stream.null.delay(20)
        return [hvd.allreduce(each, op=hvd.Sum).get() for each in odd] + [hvd.allgather(odd[0]).get()]

    results, _ = run(2, rank)
    parts = [drawn(r, (4, 6), "float32") for r in range(2)]
    total = reduced(parts, hvd.Sum)
    for each in results:
        for got, wanted in zip(each, [total.T, total[::2, 1:3], np.concatenate([p.T for p in parts])], strict=True):
            same(got, wanted, "not contiguous")


# --- NaN, overflow, bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_nan_is_not_hidden(way: str) -> None:
    """The minimum and the maximum of something and NaN are NaN, whichever rank has it; alone and in a batch."""

    def rank() -> list[list[float]]:
        found = []
        for dtype in FLOATS:
            for op in (hvd.Min, hvd.Max, hvd.Sum):
                values = np.array([np.nan, 1, 2, 3]) if hvd.rank() else np.array([1, np.nan, 2, -3])
                values = values.astype("float32" if dtype == "bfloat16" else dtype)
                fields = {"dtype": dtype, "op": op}
                handles = [begin(Kind.ALLREDUCE, put(values, dtype), f"{dtype} {op} {i}", **fields) for i in range(3)]
                found += [taken(handle.wait(), dtype).tolist() for handle in handles]
        return found

    results, log = run(2, rank, way, settings={"FUSION_WINDOW_S": "0.2"})
    nan = float("nan")
    right = {hvd.Min: [nan, nan, 2, -3], hvd.Max: [nan, nan, 2, 3], hvd.Sum: [nan, nan, 4, 0]}
    for each in results:
        wanted = [right[op] for _ in FLOATS for op in right for _ in range(3)]
        np.testing.assert_array_equal(each, wanted)
    assert {each["op"] for each in log.calls() if each["kind"] == "allReduce"} == ({0} if way == "nccl" else set())


def bare(n: int, function: Callable[[Backend], Any]) -> list[Any]:
    """Run a function on the backend of every rank, without the runtime."""

    def rank(link: ThreadLink) -> Any:
        backend = nccl_backend(Nccl(Gpu(link.rank), 10.0, 10.0), link_backend(link))
        try:
            with backend.memory.device, backend.memory.stream:
                return function(backend)
        finally:
            backend.life.close()

    with made_up(n) as world:
        results = spawn(n, rank)
        world.check_over()
    return results


@pytest.mark.parametrize("n", [once_more(2), 3, once_more(4)])
def test_our_ring_and_ncclallreduce_give_the_same_bits(n: int) -> None:
    """Of whole numbers that overflow; for every length around the number of ranks, and a longer one."""
    cases = [
        (dtype, length) for dtype in ("uint8", "int8", "int32", "int64") for length in (0, 1, n - 1, n, n + 1, 999)
    ]

    def rank(backend: Backend) -> list[tuple[bytes, bytes]]:
        found = []
        for dtype, length in cases:
            data = drawn(backend.rank, (length,), dtype, small=False)
            mine, nccls = put(data, dtype), put(data, dtype)
            collectives: Any = backend.collectives
            ring_allreduce(collectives._ring._link, mine, np.add)
            backend.collectives.allreduce(nccls, Reduction("sum", dtype))
            found.append((mine.get().tobytes(), nccls.get().tobytes()))
        return found

    results = bare(n, rank)
    for each in results:
        for (dtype, length), (mine, nccls) in zip(cases, each, strict=True):
            wanted = reduced([drawn(r, (length,), dtype, small=False) for r in range(n)], hvd.Sum)
            assert mine == nccls == wanted.tobytes(), (dtype, length)


# --- batches --------------------------------------------------------------------------------------------

SIZES = [1, 3, 0, 16, 17, 100, 4097, 40000, 5]
Copies = list[tuple[int, int, int]]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Copies]]:
    """What was to be copied, as (from, to, bytes), by thread and launch."""
    found: dict[int, list[Copies]] = defaultdict(list)
    pieces = kernels.pieces

    def spy(copies: Copies) -> Any:
        found[threading.get_ident()].append(copies)
        return pieces(copies)

    monkeypatch.setattr(kernels, "pieces", spy)
    return found


def in_batches(dtype: str, sizes: Sequence[int], **fields: Any) -> list[np.ndarray]:
    """Submit all, then wait for all."""
    fields = {"op": hvd.Sum, "dtype": dtype, **fields}
    values = [put(drawn(hvd.rank(), (size,), dtype), dtype) for size in sizes]
    handles = submit([made(Kind.ALLREDUCE, each, f"{dtype} {i}", **fields) for i, each in enumerate(values)])
    return [taken(handle.wait(), dtype) for handle in handles]


@pytest.mark.parametrize(
    ("way", "dtype"),
    [
        ("nccl", "bool"), ("nccl", "bfloat16"), ("nccl", "float64"), ("staged", "float32"), ("mpi", "float16"),
        *(once_more(way, dtype) for way in WAYS for dtype in ("int8", "float32", "float64")),
    ],
)  # fmt: skip
def test_a_batch_is_copied_in_one_launch_each_way(way: str, dtype: str, launched: dict[int, list[Copies]]) -> None:
    """Tensors of many sizes become one reduction; side by side, each begins at a multiple of 16 bytes."""
    results, log = run(2, lambda: in_batches(dtype, SIZES), way)
    for size, *got in zip(SIZES, *results, strict=True):
        for each in got:
            same(each, reduced([drawn(r, (size,), dtype) for r in range(2)], hvd.Sum), (dtype, size))
    for rank in range(2):
        assert log.launches(rank) == 2
        assert log.issued(rank) == {"nccl": {"allReduce": 1}, "staged": {"D2H": 1, "H2D": 1}, "mpi": {}}[way]
    itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    nbytes = [size * itemsize for size in SIZES]
    starts = [16 * sum(-(-each // 16) for each in nbytes[:i]) for i in range(len(SIZES))]
    for packed, unpacked in launched.values():
        base = packed[0][1]
        assert base % 16 == 0
        assert [(to - base, size) for _, to, size in packed if size] == [
            each for each in zip(starts, nbytes, strict=True) if each[1]
        ]
        assert [(source, size) for source, _, size in unpacked if size] == [pair[1:] for pair in packed if pair[2]]


@ONE_WAY
def test_batches_of_several_kinds(way: str) -> None:
    """By dtype, op and factors; each of them with its own reduction, and what is alone is not copied at all."""

    def rank() -> list[np.ndarray]:
        kinds = [("float32", hvd.Sum), ("float32", hvd.Average), ("int64", hvd.Sum), ("bfloat16", hvd.Average)]
        entries = [
            made(Kind.ALLREDUCE, put(drawn(hvd.rank(), (6,), dtype), dtype), f"{i} {k}", dtype=dtype, op=op)
            for k, (dtype, op) in enumerate([*kinds, ("int32", hvd.Max)])
            for i in range(1 if dtype == "int32" else 4)
        ]
        dtypes = [each.request.dtype for each in entries]
        return [taken(handle.wait(), dtype) for handle, dtype in zip(submit(entries), dtypes, strict=True)]

    results, log = run(2, rank, way)
    kinds = [("float32", hvd.Sum), ("float32", hvd.Average), ("int64", hvd.Sum), ("bfloat16", hvd.Average)]
    for each in results:
        for k, (dtype, op) in enumerate(kinds):
            wanted = reduced([drawn(r, (6,), dtype) for r in range(2)], op)
            for got in each[4 * k : 4 * k + 4]:
                same(got, wanted, (dtype, op))
        same(each[16], reduced([drawn(r, (6,), "int32") for r in range(2)], hvd.Max), "alone")
    assert log.launches() == 2 * len(kinds)
    assert log.issued() == {"nccl": {"allReduce": 5}, "staged": {"D2H": 5, "H2D": 5}, "mpi": {}}[way]


def test_no_batch_is_larger_than_the_threshold() -> None:
    """Ten tensors of 400 bytes go three by three."""
    results, log = run(
        2, lambda: [in_batches("float32", [100] * 10) for _ in range(3)], settings={"FUSION_THRESHOLD_BYTES": "1300"}
    )
    wanted = reduced([drawn(r, (100,), "float32") for r in range(2)], hvd.Sum)
    for got in [each for rank in results for step in rank for each in step]:
        same(got, wanted, "float32")
    assert log.issued() == {"allReduce": 3 * 4}
    assert log.launches() == 3 * 3 * 2  # the tenth is alone


@ONE_WAY
def test_the_tables_of_alike_batches_are_made_once(way: str) -> None:
    """Steps are alike; and where all are different, a table that is no longer kept was kept for long enough."""

    def rank() -> list[list[float]]:
        import cupy

        mine = [cupy.ones(size, np.float32) for size in (5, 9)]
        for step in range(4):
            for handle in summed(step, mine, in_place=True):
                handle.wait()
        with cupy.cuda.Stream(non_blocking=True) as side:
            side.wait_event(cupy.cuda.Stream.null.record())
            side.delay(100)
            many = [summed(f"many {i}", [mine[0] * i] * 2) for i in range(34)]
            found = [handle.wait().tolist() for pair in many for handle in pair]
        return [each.tolist() for each in mine] + found

    def summed(name: object, arrays: list[Any], in_place: bool = False) -> list[Handle]:
        fields = [{"op": hvd.Sum, **({"target": each} if in_place else {})} for each in arrays]
        pairs = enumerate(zip(arrays, fields, strict=True))
        return submit([made(Kind.ALLREDUCE, each, f"{name} {i}", **field) for i, (each, field) in pairs])

    with made_up(2, way, settings={"FUSION_THRESHOLD_BYTES": "56"}) as world:
        results = ranks(world, 2, rank)
        world.check_over()
    wanted = [[16.0] * 5, [16.0] * 9, *([32.0 * i] * 5 for i in range(34) for _ in range(2))]
    assert results == [wanted] * 2
    tables = [each for each in world.log if each.verb == "memcpy" and each.device == 0 and each.details["bytes"] == 48]
    assert len(tables) == 2 + 2 * 34


# --- ranks that have nothing ----------------------------------------------------------------------------


@ONE_WAY
def test_a_rank_that_has_joined_gives_zeros(way: str) -> None:
    """Alone and in batches, while its own results are still on their way; an average divides by all."""

    def rank() -> tuple[list[list[np.ndarray]], int]:
        me, found = hvd.rank(), []
        for step in range(3 if me == 0 else 1):
            found.append(in_batches("float32", SIZES, op=hvd.Average))
            found.append([call(Kind.ALLREDUCE, drawn(me, (4,), "int64"), "int64", name=f"{step}", op=hvd.Sum)])
        late = hvd.allreduce_async(put(drawn(me, (3,), "float32"), "float32"), "late") if me == 0 else None
        last = hvd.join()
        return ([*found, [late.wait().get()]] if late else found), last

    results, _ = run(2, rank, way)
    assert [last for _, last in results] == [0, 0]
    steps = results[0][0]
    for step in range(3):
        there = range(2) if step == 0 else range(1)
        for got, size in zip(steps[2 * step], SIZES, strict=True):
            parts = [drawn(r, (size,), "float32") for r in there]
            same(got, (reduced(parts, hvd.Sum) / 2).astype(np.float32), (step, size))
        same(steps[2 * step + 1][0], reduced([drawn(r, (4,), "int64") for r in there], hvd.Sum), step)
    same(steps[6][0], drawn(0, (3,), "float32") / 2, "late")


@ONE_WAY
def test_a_rank_without_a_gradient_gives_zeros(way: str) -> None:
    """It says so under the name, and gets the sum nevertheless; where all say so nothing moves."""

    def rank() -> list[Any]:
        fields = {"dtype": "float32", "op": hvd.Sum}
        absent = {"shape": (3,), "absent": True, **fields}
        nothing = submit([made(Kind.ALLREDUCE, None, f"nobody's {i}", **absent) for i in range(2)])
        entries = []
        for i, size in enumerate(SIZES):
            if i % 2 == hvd.rank():
                entries.append(made(Kind.ALLREDUCE, None, f"{i}", **{**absent, "shape": (size,)}))
            else:
                entries.append(made(Kind.ALLREDUCE, put(drawn(5, (size,), "float32"), "float32"), f"{i}", **fields))
        handles = submit(entries)
        return [[each.wait() for each in nothing], [each.wait().get() for each in handles]]

    results, log = run(2, rank, way)
    for nothing, got in results:
        assert nothing == [None, None]
        for each, size in zip(got, SIZES, strict=True):
            same(each, drawn(5, (size,), "float32"), size)
    assert log.launches() == 2


# --- process sets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["nccl", "staged"])
def test_a_process_set_has_a_communicator_of_its_own(way: str) -> None:
    """Two sets at once, every verb; it is destroyed where the set ends, and the world goes on."""

    def rank() -> list[Any]:
        me = hvd.rank()
        sets = [hvd.add_process_set([0, 2]), hvd.add_process_set([1, 2, 3])]
        found: list[Any] = []
        for one in sets:
            if one.included():
                some = {"process_set": one}
                x = put(drawn(me, (6,), "float32"), "float32")
                found.append(hvd.allreduce(x, op=hvd.Sum, **some).tolist())
                found.append(hvd.allgather(put(np.full(me, me), "int64"), **some).tolist())
                found.append(hvd.broadcast(put(np.full(2, me), "int64"), root_rank=2, **some).tolist())
                found.append(hvd.alltoall(put(np.full(6, me), "int64"), **some)[0].tolist())
                found.append(hvd.reducescatter(put(np.full(7, me), "int64"), op=hvd.Sum, **some).tolist())
        for one in sets:
            hvd.remove_process_set(one)
        return [*found, hvd.allreduce(put(np.full(3, me), "int64"), op=hvd.Sum).tolist()]

    def wanted(me: int, ranks: list[int]) -> list[Any]:
        rows = [len(part) for part in np.array_split(range(7), len(ranks))]
        return [
            reduced([drawn(r, (6,), "float32") for r in ranks], hvd.Sum).tolist(),
            [r for r in ranks for _ in range(r)],
            [2, 2],
            [r for r in ranks for _ in range(6 // len(ranks))],
            [sum(ranks)] * rows[ranks.index(me)],
        ]

    results, log = run(4, rank, way)
    for me, got in enumerate(results):
        sets = [ranks for ranks in ([0, 2], [1, 2, 3]) if me in ranks]
        assert got == [*(each for ranks in sets for each in wanted(me, ranks)), [6] * 3]
    if way == "staged":
        return
    assert log.issued() == {"allReduce": 1}
    for communicator, size in ((2, 2), (3, 3)):
        members = [each.details for each in log.records if each.details.get("communicator") == communicator]
        assert {each["rank"] for each in members} == set(range(size))
        for member in range(size):
            kinds = log.count(member, communicator)
            assert kinds["allReduce"] == kinds["allGather"] + 1 == 1
    ended = [each.details["communicator"] for each in log.records if each.verb == "destroy"]
    assert sorted(ended) == [1] * 4 + [2] * 2 + [3] * 3
    assert ended[-4:] == [1] * 4


@pytest.mark.parametrize("way", ["nccl", "staged"])
def test_a_set_may_end_while_its_results_are_on_their_way(way: str) -> None:
    """Nobody has waited for the GPU, only for the handle; the numbers are right for every order."""

    def rank() -> np.ndarray | None:
        some = hvd.add_process_set([0, 1])
        mine = put(drawn(hvd.rank(), (64,), "float32"), "float32")
        result = hvd.allreduce(mine, op=hvd.Sum, process_set=some) if some.included() else None
        hvd.remove_process_set(some)
        return None if result is None else result.get()

    wanted = reduced([drawn(r, (64,), "float32") for r in range(2)], hvd.Sum)
    with pytest.MonkeyPatch.context() as patch:
        slow_bus(patch)
        for seed in range(10):
            for got in run(3, rank, way, seed=seed)[0][:2]:
                same(got, wanted, seed)
