"""The stand-in's NCCL: right numbers where the order was right, and else a hang that says who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from . import CUDARuntimeError, World, build, run_ranks
from .arithmetic import AVG, BFLOAT16, MAX, MIN, PROD, SUM, TYPES, from_bfloat16, to_bfloat16

FLOAT32 = 7


def in_ranks(world: World, count: int, work: Callable[[Any, int], Any]) -> list[Any]:
    """`work(communicator, rank)` on every rank of a new communicator, which is destroyed after it."""
    unique = world.cupy.cuda.nccl.get_unique_id()

    def one(rank: int) -> Any:
        communicator = world.cupy.cuda.nccl.NcclCommunicator(count, unique, rank)
        result = work(communicator, rank)
        communicator.destroy()
        return result

    return run_ranks(world, count, one)


@pytest.mark.parametrize("datatype", TYPES)
def test_all_reduce_is_numpys_reduction(datatype: int) -> None:
    """For every type and operation, also in place. bfloat16 is computed as float32 and rounded after each step."""
    world, count = build(devices=3, seed=datatype), 5
    data = np.random.default_rng(0).integers(1, 12, (3, count))
    calls = {SUM: np.add, PROD: np.multiply, MAX: np.maximum, MIN: np.minimum, AVG: np.add}

    def work(communicator: Any, rank: int) -> list[Any]:
        host = data[rank].astype(np.float32)
        host = to_bfloat16(host) if datatype == BFLOAT16 else host.astype(TYPES[datatype])
        results = []
        for op in calls:
            x = world.cupy.asarray(host)
            y = world.cupy.empty_like(x) if op % 2 else x
            communicator.allReduce(x.data.ptr, y.data.ptr, count, datatype, op, 0)
            results.append(y.get())
        return results

    for results in in_ranks(world, 3, work):
        for (op, call), got in zip(calls.items(), results, strict=True):
            wanted = call.reduce(data.astype(np.float64))
            if op == AVG:
                wanted = wanted / 3 if datatype in (6, 7, 8, BFLOAT16) else wanted // 3
            value = from_bfloat16(got) if datatype == BFLOAT16 else got
            if datatype in (0, 1):
                value, wanted = value.astype(np.uint8), wanted.astype(np.int64).astype(np.uint8)  # they wrap around
            np.testing.assert_allclose(value, wanted, rtol={BFLOAT16: 2**-6, 6: 2**-9}.get(datatype, 1e-6))
    world.check_over()


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    """Ties go to the even neighbour, NaN stays NaN, and what is a bfloat16 stays as it is."""
    bits = np.arange(0x10000, dtype=np.uint32).astype(np.uint16)
    values = from_bfloat16(bits)
    same = to_bfloat16(values)
    assert ((same == bits) | np.isnan(values)).all()
    assert np.isnan(from_bfloat16(same)[np.isnan(values)]).all()
    ties = ((np.arange(0x3F80, 0x3F90, dtype=np.uint32) << 16) + 0x8000).view(np.float32)
    assert (to_bfloat16(ties) % 2 == 0).all()


def test_collectives_are_numpys() -> None:
    """Reduce, broadcast, reduce-scatter and allgather, the last two also in place."""
    world, data = build(devices=3, seed=5), np.random.default_rng(1).integers(-9, 9, (3, 6)).astype(np.float32)

    def work(communicator: Any, rank: int) -> list[Any]:
        x, y, z = world.cupy.asarray(data[rank]), world.cupy.zeros(6, np.float32), world.cupy.zeros(6, np.float32)
        a, b, whole = (world.cupy.asarray(data[rank]) for _ in range(3))
        own = slice(2 * rank, 2 * rank + 2)
        communicator.reduce(x.data.ptr, y.data.ptr, 6, FLOAT32, MAX, 1, 0)
        communicator.broadcast(x.data.ptr, z.data.ptr, 6, FLOAT32, 2, 0)
        communicator.bcast(a.data.ptr, 6, FLOAT32, 0, 0)
        communicator.reduceScatter(b.data.ptr, b[own].data.ptr, 2, FLOAT32, SUM, 0)
        communicator.allGather(whole[own].data.ptr, whole.data.ptr, 2, FLOAT32, 0)
        return [each.get() for each in (y, z, a, b[own], whole)]

    gathered = np.concatenate([data[rank, 2 * rank : 2 * rank + 2] for rank in range(3)])
    for rank, got in enumerate(in_ranks(world, 3, work)):
        total = data.sum(axis=0)[2 * rank : 2 * rank + 2]
        wanted = [data.max(axis=0) if rank == 1 else np.zeros(6), data[2], data[0], total, gathered]
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    world.check_over()


@pytest.mark.parametrize("seed", range(10))
def test_a_ring_in_groups(seed: int) -> None:
    """Each rank sends to the next and receives from the one before, in one group: what goes around comes around."""
    world, size = build(devices=4, seed=seed), 4
    nccl = world.cupy.cuda.nccl

    def work(communicator: Any, rank: int) -> list[int]:
        stream = world.cupy.cuda.Stream(non_blocking=True)
        with stream:
            here, there = world.cupy.full(3, rank, np.int64), world.cupy.empty(3, np.int64)
            for _ in range(3):
                nccl.groupStart()
                communicator.send(here.data.ptr, 3, nccl.NCCL_INT64, (rank + 1) % size, stream.ptr)
                communicator.recv(there.data.ptr, 3, nccl.NCCL_INT64, (rank - 1) % size, stream.ptr)
                nccl.groupEnd()
                here, there = there, here
            return here.tolist()

    assert in_ranks(world, size, work) == [[(rank - 3) % size] * 3 for rank in range(size)]
    groups = [record for record in world.log if record.verb == "group" and record.thread == "rank 2"]
    assert [[call["kind"] for call in record.details["calls"]] for record in groups] == [["send", "recv"]] * 3
    world.check_over()


def told_when_stuck(world: World, barrier: threading.Barrier) -> str:
    """What a rank's waiting says once it has given up; no rank goes on before all have."""
    with pytest.raises(RuntimeError, match="was not reached") as caught:
        world.cupy.cuda.Device().synchronize()
    barrier.wait(5)
    return str(caught.value)


def test_send_and_recv_outside_of_a_group_hang() -> None:
    """Both ranks send first: each send waits for a recv that stands behind the other send. Until they abort."""
    world, barrier = build(), threading.Barrier(2)
    world.deadline_s = 0.2

    def work(communicator: Any, rank: int) -> str:
        x = world.cupy.ones(1, np.float32)
        communicator.send(x.data.ptr, 1, FLOAT32, 1 - rank, 0)
        communicator.recv(x.data.ptr, 1, FLOAT32, 1 - rank, 0)
        told = told_when_stuck(world, barrier)
        communicator.abort()
        assert x.tolist() == [1]
        return told

    for told in in_ranks(world, 2, work):
        assert (
            "stream 0 of device 0: send to 1 of rank 0 waits for the recv from 0 of rank 1, "
            "which stands behind send to 0 of rank 1 on stream 0 of device 1 (2 pending)"
        ) in told
        assert "stream 0 of device 1: send to 0 of rank 1 waits for" in told
    world.check_over()


def test_another_order_on_another_rank_hangs() -> None:
    """Two communicators in one order on rank 0 and in the other on rank 1, each on one stream."""
    world, barrier = build(), threading.Barrier(2)
    unique = world.cupy.cuda.nccl.get_unique_id()
    world.deadline_s = 0.2

    def work(first: Any, rank: int) -> None:
        second = world.cupy.cuda.nccl.NcclCommunicator(2, unique, rank)
        x = world.cupy.ones(4)
        for each in (first, second) if rank == 0 else (second, first):
            each.allReduce(x.data.ptr, x.data.ptr, 4, 8, SUM, 0)
        told = told_when_stuck(world, barrier)
        assert "allReduce of rank 1, which stands behind allReduce of rank 1" in told
        first.abort()
        second.abort()

    in_ranks(world, 2, work)
    world.check_over()


@pytest.mark.parametrize("fault", ["fails", "dies"])
def test_abort_releases_those_whom_a_rank_lets_down(fault: str) -> None:
    """A failed rank's `check_async_error` raises, a dead one's does not; the work after the abort runs."""
    world = build(seed=3)
    nccl = world.cupy.cuda.nccl
    if fault == "fails":
        world.faults.fail_async(1, error="link down")
    else:
        world.faults.die(1)
    world.deadline_s = 0.2

    def work(communicator: Any, rank: int) -> Any:
        x = world.cupy.ones(4)
        communicator.allReduce(x.data.ptr, x.data.ptr, 4, 8, SUM, 0)
        event = world.cupy.cuda.get_current_stream().record()
        if rank == 1 and fault == "fails":
            with pytest.raises(nccl.NcclError, match="link down"):
                communicator.check_async_error()
        else:
            communicator.check_async_error()
        with pytest.raises(RuntimeError, match=r"rank 1, which (has failed|is dead)"):
            event.synchronize()
        communicator.abort()
        event.synchronize()
        with pytest.raises(nccl.NcclError, match="aborted"):
            communicator.check_async_error()
        return (x + 1).tolist()

    assert in_ranks(world, 2, work) == [[2] * 4] * 2
    world.check_over()


def test_ranks_that_do_not_agree_are_told() -> None:
    """Another count on one rank is an error that every rank meets at its next look, and the streams go on."""
    world = build()

    def work(communicator: Any, rank: int) -> None:
        x = world.cupy.ones(4, np.float32)
        communicator.allReduce(x.data.ptr, x.data.ptr, 4 - rank, FLOAT32, SUM, 0)
        with pytest.raises(CUDARuntimeError, match=r"rank 0: 4 elements .*rank 1: 3 elements"):
            world.cupy.cuda.Device().synchronize()
        communicator.abort()

    in_ranks(world, 2, work)
    world.errors.clear()
    world.run_all()
    world.check_over()


def test_wrong_arguments_are_refused() -> None:
    """Memory or a stream of another device, buffers that overlap, an unknown type, a peer that is none."""
    world = build()
    cuda = world.cupy.cuda

    def work(communicator: Any, rank: int) -> None:
        x = world.cupy.ones(4, np.float32)
        with cuda.Device(1 - rank):
            far, far_stream = world.cupy.ones(4, np.float32), cuda.Stream()
        here, sum_of = x.data.ptr, communicator.allReduce
        for wrong in (
            lambda: sum_of(far.data.ptr, here, 4, FLOAT32, SUM, 0),
            lambda: sum_of(here, here, 4, FLOAT32, SUM, far_stream.ptr),
            lambda: sum_of(here, here + 4, 3, FLOAT32, SUM, 0),
            lambda: sum_of(here, here, 4, 77, SUM, 0),
            lambda: sum_of(here, here, 5, FLOAT32, SUM, 0),
            lambda: communicator.send(here, 4, FLOAT32, 2, 0),
        ):
            with pytest.raises((cuda.nccl.NcclError, CUDARuntimeError)):
                wrong()
        assert (communicator.rank_id(), communicator.size(), communicator.device_id()) == (rank, 2, rank)

    in_ranks(world, 2, work)
    world.run_all()
    world.check_over()


def test_two_ranks_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, unless NCCL is 2.30 or later and told so. Equal uuids are one GPU, whatever their numbers."""
    for version, told, uuids, refused in (
        (22809, "1", [b"g" * 16] * 2, True),
        (23004, "0", [b"g" * 16] * 2, True),
        (23004, "1", [b"g" * 16] * 2, False),
        (22809, "0", None, False),
    ):
        monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", told)
        world = build(nccl_version=version, uuids=uuids)
        if refused:
            with pytest.raises(world.cupy.cuda.nccl.NcclError, match="Duplicate GPU detected"):
                in_ranks(world, 2, lambda communicator, rank: None)
        else:
            in_ranks(world, 2, lambda communicator, rank: None)
            world.check_over()


def test_a_rank_that_never_comes_and_one_that_never_goes() -> None:
    """A communicator waits for its ranks for so long; one that was not destroyed is told by `check_over`."""
    world = build()
    nccl = world.cupy.cuda.nccl
    world.init_timeout_s = 0.05
    with pytest.raises(nccl.NcclError, match=r"of 2 ranks only \[1\] came"):
        nccl.NcclCommunicator(2, nccl.get_unique_id(), 1)
    alone = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    with pytest.raises(AssertionError, match="not destroyed: rank 0 of communicator 2"):
        world.check_over()
    alone.destroy()
    alone.destroy()
    alone.abort()
    with pytest.raises(nccl.NcclError, match="destroyed"):
        alone.size()
    world.check_over()
