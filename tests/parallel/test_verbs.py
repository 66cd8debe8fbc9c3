"""Large tensors, broadcasts in place, barrier and handles; what all verbs do is in ``test_contract.py``."""

from __future__ import annotations

import time

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


def test_allgather_large(rank: int, n: int) -> None:
    """A million elements per rank, one rank more than the others."""
    counts = [1_000_000 + (r == 0) for r in range(n)]
    result = hvd.allgather(torch.full((counts[rank],), rank, dtype=torch.int32))
    assert torch.equal(result, torch.repeat_interleave(torch.arange(n, dtype=torch.int32), torch.tensor(counts)))


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
