"""Allgather, broadcast, alltoall, reducescatter, barrier and handles, against closed forms in numpy and torch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

import workbench.torch as hvd
from workbench.errors import WaitTimeoutError

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


def rows_of(rank: int, rows: int, tail: tuple[int, ...] = (3,), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A rank's input: every element tells the rank and the place that it comes from."""
    count = rows * int(np.prod(tail))
    values = (torch.arange(count) + 17 * rank) % 100
    return (values % 2 == 0 if dtype is torch.bool else values.to(dtype)).reshape(rows, *tail)


# --- allgather ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tail", [(), (3,), (2, 5)], ids=str)
def test_allgather_equal_rows(dtype: torch.dtype, tail: tuple[int, ...], rank: int, n: int) -> None:
    """The result is the concatenation by rank, in new memory."""
    tensor = rows_of(rank, 4, tail, dtype)
    wanted = torch.cat([rows_of(r, 4, tail, dtype) for r in range(n)])
    for result in (hvd.allgather(tensor), hvd.synchronize(hvd.allgather_async(tensor, name="equal_rows"))):
        assert result.dtype is dtype
        assert torch.equal(result, wanted)
        assert result.data_ptr() != tensor.data_ptr()
    assert torch.equal(tensor, rows_of(rank, 4, tail, dtype))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float32], ids=str)
def test_allgather_of_different_rows(dtype: torch.dtype, rank: int, n: int) -> None:
    """The first dimension may differ; a rank with no rows takes part, whichever it is; all may have none."""
    for empty in range(n):
        counts = [0 if r == empty else 2 * r + 1 for r in range(n)]
        result = hvd.allgather(rows_of(rank, counts[rank], dtype=dtype), name="different_rows")
        assert torch.equal(result, torch.cat([rows_of(r, counts[r], dtype=dtype) for r in range(n)]))
    assert hvd.allgather(torch.empty(0, 3, dtype=dtype)).shape == (0, 3)
    assert hvd.allgather(torch.empty(2, 0, dtype=dtype)).shape == (2 * n, 0)


def test_allgather_large(rank: int, n: int) -> None:
    """A million elements per rank, one rank more than the others."""
    counts = [1_000_000 + (r == 0) for r in range(n)]
    result = hvd.allgather(torch.full((counts[rank],), rank, dtype=torch.int32))
    assert torch.equal(result, torch.repeat_interleave(torch.arange(n, dtype=torch.int32), torch.tensor(counts)))


def test_grouped_allgather(rank: int, n: int) -> None:
    """Members of a group may differ in dtype, shape and rows."""
    tensors = [rows_of(rank, rank + i, (i,), dtype) for i, dtype in enumerate((torch.float32, torch.int64, torch.bool))]
    wanted = [
        torch.cat([rows_of(r, r + i, (i,), dtype) for r in range(n)])
        for i, dtype in enumerate((torch.float32, torch.int64, torch.bool))
    ]
    for results in (
        hvd.grouped_allgather(tensors, name="group"),
        hvd.grouped_allgather(tensors),
        hvd.synchronize(hvd.grouped_allgather_async(tensors)),
    ):
        assert all(torch.equal(result, want) for result, want in zip(results, wanted, strict=True))
    assert list(hvd.grouped_allgather([])) == []


# --- broadcast ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcast_from_every_root(dtype: torch.dtype, rank: int, n: int) -> None:
    """From each root every rank gets the root's tensor; the plain forms leave the input, the others fill it."""
    for root in range(n):
        for shape in ((), (0,), (1,), (5, 3)):
            wanted = rows_of(root, 5, (3,), dtype).flatten()[: int(np.prod(shape))].reshape(shape)
            own = rows_of(rank, 5, (3,), dtype).flatten()[: int(np.prod(shape))].reshape(shape).clone()
            before = own.clone()
            assert torch.equal(hvd.broadcast(own, root, name="from_every_root"), wanted)
            assert torch.equal(hvd.synchronize(hvd.broadcast_async(own, root_rank=root)), wanted)
            assert torch.equal(own, before)
            assert hvd.broadcast_(own, root) is own
            assert torch.equal(own, wanted)
            own.copy_(before)
            assert hvd.synchronize(hvd.broadcast_async_(own, root, name="in_place")) is own
            assert torch.equal(own, wanted)


def test_broadcast_large(rank: int, n: int) -> None:
    """A million elements from the last rank."""
    result = hvd.broadcast(torch.full((1_000_000,), float(rank)), n - 1)
    assert bool((result == n - 1).all())


# --- alltoall -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alltoall_even(dtype: torch.dtype, rank: int, n: int) -> None:
    """Without splits each rank gets the same number of rows from every rank, and only the tensor is returned."""
    tensor = rows_of(rank, 2 * n, dtype=dtype)
    wanted = torch.cat([rows_of(r, 2 * n, dtype=dtype)[2 * rank : 2 * rank + 2] for r in range(n)])
    for result in (hvd.alltoall(tensor), hvd.synchronize(hvd.alltoall_async(tensor, name="even"))):
        assert isinstance(result, torch.Tensor)
        assert torch.equal(result, wanted)


def splits_of(rank: int, n: int, kind: str) -> list[int]:
    """Rows that a rank sends to each."""
    return {
        "even": [3] * n,
        "uneven": [rank + 2 * to for to in range(n)],
        "only to the next": [4 if to == (rank + 1) % n else 0 for to in range(n)],
        "one sends all": [to + 1 if rank == 0 else 0 for to in range(n)],
        "nothing": [0] * n,
    }[kind]


@pytest.mark.parametrize("kind", ["even", "uneven", "only to the next", "one sends all", "nothing"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.bfloat16, torch.float64], ids=str)
def test_alltoall_splits(kind: str, dtype: torch.dtype, rank: int, n: int) -> None:
    """With splits the rows go where they say, and the second result tells how many came from each rank."""
    table = [splits_of(r, n, kind) for r in range(n)]
    starts = [int(np.sum(row[:rank])) for row in table]
    wanted = torch.cat(
        [rows_of(r, sum(table[r]), dtype=dtype)[starts[r] : starts[r] + table[r][rank]] for r in range(n)]
    )
    tensor = rows_of(rank, sum(table[rank]), dtype=dtype)
    as_tensor = torch.tensor(table[rank], dtype=torch.int32)
    for result in (
        hvd.alltoall(tensor, as_tensor),
        hvd.alltoall(tensor, table[rank], name="splits"),
        hvd.synchronize(hvd.alltoall_async(tensor, splits=as_tensor)),
    ):
        received, counts = result
        assert received.dtype is dtype
        assert torch.equal(received, wanted)
        assert counts.dtype is torch.int32
        assert counts.tolist() == [row[rank] for row in table]


def test_alltoall_twice_is_the_identity(rank: int, n: int) -> None:
    """What the received counts send back arrives as it was."""
    tensor = rows_of(rank, sum(splits_of(rank, n, "uneven")))
    there, counts = hvd.alltoall(tensor, splits_of(rank, n, "uneven"))
    back, original = hvd.alltoall(there, counts)
    assert torch.equal(back, tensor)
    assert original.tolist() == splits_of(rank, n, "uneven")


# --- reducescatter ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product], ids=lambda op: op.value)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_reducescatter(dtype: torch.dtype, op: Any, rank: int, n: int) -> None:
    """Each rank keeps its rows of the allreduce; the first ``rows % n`` ranks get one row more; none is possible."""
    for rows in (2 * n, 2 * n + 1, max(1, n - 1), 0):
        inputs = [rows_of(r, rows, dtype=dtype) % 4 for r in range(n)]
        whole = torch.stack(inputs).double()
        total = {
            hvd.Average: whole.sum(0) / n,
            hvd.Sum: whole.sum(0),
            hvd.Min: whole.min(0).values if rows else whole.sum(0),
            hvd.Max: whole.max(0).values if rows else whole.sum(0),
            hvd.Product: whole.prod(0),
        }[op]
        wanted = (total if dtype.is_floating_point else total.trunc()).to(dtype)
        counts = [rows // n + (r < rows % n) for r in range(n)]
        start = sum(counts[:rank])
        for result in (
            hvd.reducescatter(inputs[rank], op=op, name="rows"),
            hvd.synchronize(hvd.reducescatter_async(inputs[rank], op=op)),
        ):
            assert result.dtype is dtype
            assert result.shape == (counts[rank], 3)
            assert torch.allclose(result.double(), wanted[start : start + counts[rank]].double(), rtol=1e-2, atol=0)
            if n & (n - 1) == 0 or op is not hvd.Average:  # dividing by 2 and 4 does not round
                assert torch.equal(result, wanted[start : start + counts[rank]])
        assert torch.equal(inputs[rank], rows_of(rank, rows, dtype=dtype) % 4)


def test_reducescatter_with_factors_and_compression(rank: int, n: int) -> None:
    """Prescale, postscale and a shorter dtype on the way, as for allreduce."""
    tensor = torch.full((n, 2), float(rank + 1))
    total = n * (n + 1) / 2
    assert (hvd.reducescatter(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0) == 2 * total).all()
    assert (hvd.reducescatter(tensor) == total / n).all()
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        result = hvd.reducescatter(tensor, op=hvd.Sum, compression=compression)
        assert result.dtype is torch.float32
        assert (result == total).all()


def test_grouped_reducescatter(rank: int, n: int) -> None:
    """Members of a group may differ in dtype and shape."""
    tensors = [
        torch.full((n + i, 2), float(rank), dtype=dtype) for i, dtype in enumerate((torch.float32, torch.float64))
    ]
    total = n * (n - 1) / 2
    for results in (
        hvd.grouped_reducescatter(tensors, op=hvd.Sum, name="group"),
        hvd.grouped_reducescatter(tensors, op=hvd.Sum, compression=hvd.Compression.fp16),
        hvd.synchronize(hvd.grouped_reducescatter_async(tensors, op=hvd.Sum)),
    ):
        for i, (result, tensor) in enumerate(zip(results, tensors, strict=True)):
            assert result.dtype is tensor.dtype
            assert result.shape == (1 + (rank < i if n > 1 else i), 2)
            assert (result == total).all()


# --- barrier, handles ---------------------------------------------------------------------------------


def test_barrier_waits_for_the_last(rank: int, n: int) -> None:
    """Nobody leaves a barrier before the last rank has come. The clock is the machine's, the same for all ranks."""
    if rank == n - 1:
        time.sleep(0.3)
    came = time.monotonic()
    hvd.barrier()
    left = time.monotonic()
    times = hvd.allgather(torch.tensor([[came, left]], dtype=torch.float64))
    assert times[:, 1].min() >= times[:, 0].max()


def test_poll_and_synchronize(rank: int, n: int) -> None:
    """``poll`` is False while a rank is missing and True afterwards; a result can be fetched more than once."""
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="polled")
        if n > 1:
            assert not hvd.poll(handle)
    hvd.barrier()
    if rank != 0:
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="polled")
    result = hvd.synchronize(handle)
    assert hvd.poll(handle)
    assert result.tolist() == [n] * 3
    assert hvd.synchronize(handle) is result


@pytest.mark.ranks(2)
def test_a_wait_with_a_deadline_can_be_repeated(rank: int, n: int) -> None:
    """After a WaitTimeoutError the collective goes on, and the same handle gives the result later."""
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="late")
        with pytest.raises(WaitTimeoutError, match=r"allreduce\.late"):
            handle.wait(0.1)
    hvd.barrier()
    if rank != 0:
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="late")
    assert handle.wait(30).tolist() == [n] * 3


def test_callbacks(rank: int, n: int) -> None:
    """A callback runs once, with the finished handle, also when it is added afterwards."""
    seen: list[list[float]] = []
    handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
    handle.add_done_callback(lambda done: seen.append(done.result.tolist()))
    hvd.synchronize(handle)
    handle.add_done_callback(lambda done: seen.append(done.result.tolist()))
    hvd.barrier()  # the first one may still be running on the engine's thread
    assert seen == [[n] * 2] * 2


def test_verbs_in_flight_together(rank: int, n: int) -> None:
    """All verbs are submitted before the first is waited for, and each gets its own result."""
    tensor = torch.full((n, 2), float(rank))
    handles = {
        "allreduce": hvd.allreduce_async(tensor, op=hvd.Sum),
        "allgather": hvd.allgather_async(tensor),
        "broadcast": hvd.broadcast_async(tensor, n - 1),
        "alltoall": hvd.alltoall_async(tensor),
        "reducescatter": hvd.reducescatter_async(tensor, op=hvd.Max),
        "max": hvd.allreduce_async(tensor, op=hvd.Max),
    }
    results = {name: hvd.synchronize(handle) for name, handle in reversed(handles.items())}
    by_rank = torch.arange(n, dtype=torch.float32)
    assert (results["allreduce"] == n * (n - 1) / 2).all()
    assert torch.equal(results["allgather"], by_rank.repeat_interleave(n).unsqueeze(1).expand(-1, 2))
    assert (results["broadcast"] == n - 1).all()
    assert torch.equal(results["alltoall"], by_rank.unsqueeze(1).expand(-1, 2))
    assert torch.equal(results["reducescatter"], torch.full((1, 2), n - 1.0))
    assert (results["max"] == n - 1).all()


def test_numpy_api(rank: int, n: int) -> None:
    """The same job serves the numpy verbs, beside the torch ones."""
    import workbench

    array = np.arange(4.0) + rank
    assert workbench.allreduce(array, op=hvd.Sum).tolist() == [n * i + n * (n - 1) / 2 for i in range(4)]
    assert workbench.allgather(array[:rank]).tolist() == [i + r for r in range(n) for i in range(r)][: n * 4]
    assert workbench.broadcast(array, n - 1).tolist() == [i + n - 1.0 for i in range(4)]
    assert workbench.alltoall(np.full(n, rank))[0].tolist() == list(range(n))
    assert workbench.reducescatter(np.full(n, rank), op=hvd.Max).tolist() == [n - 1]
