from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_standin import CUDARuntimeError, World, build, install

SEEDS = range(200)


def share_of(right: Callable[[World], bool]) -> float:
    """For how many of the seeds it comes out right."""
    return sum(right(build(seed=seed)) for seed in SEEDS) / len(SEEDS)


def side_stream(world: World) -> Any:
    """One that is bound by events alone."""
    return world.cupy.cuda.Stream(non_blocking=True)


@pytest.mark.parametrize("waits", [True, False])
def test_a_missing_wait_is_seen(waits: bool) -> None:
    """Reading before the writer's event gives wrong numbers for some seeds; waiting for it gives none."""

    def right(world: World) -> bool:
        side = side_stream(world)
        x = world.cupy.arange(4, dtype=np.float32)
        if waits:
            side.wait_event(world.cupy.cuda.get_current_stream().record())
        with side:
            y = x * 2
        side.synchronize()
        return y.get().tolist() == [0, 2, 4, 6]

    share = share_of(right)
    assert share == 1 if waits else 0.1 < share < 0.9


@pytest.mark.parametrize("waits", [True, False])
def test_writing_too_early_is_seen(waits: bool) -> None:
    """A reader may be so late that ten operations of another stream come first."""

    def right(world: World) -> bool:
        side, x = side_stream(world), world.cupy.zeros(3)
        world.cupy.cuda.Stream.null.synchronize()
        with side:
            y = x + 1
        if waits:
            world.cupy.cuda.get_current_stream().wait_event(side.record())
        for _ in range(10):
            x += 1
        world.run_all()
        return y.tolist() == [1, 1, 1]

    share = share_of(right)
    assert share == 1 if waits else 0.1 < share < 0.95


def test_an_event_is_the_point_of_its_last_record() -> None:
    """Never recorded it is done; `wait_event` means the record before it, not one that comes later."""
    world = build()
    cuda, first, second = world.cupy.cuda, side_stream(world), side_stream(world)
    event = cuda.Event(disable_timing=True)
    assert event.done
    second.wait_event(event)
    first.record(event)
    second.wait_event(event)
    first.delay(10**9)
    first.record(event)
    second.synchronize()
    assert not event.done
    world.deadline_s = 0.05
    with pytest.raises(RuntimeError, match=r"event .* was not reached.*\n.*delay of"):
        event.synchronize()


def test_the_default_stream_keeps_order_with_blocking_streams_only() -> None:
    """Blocking streams need no event to and from the default stream; two of them, or non-blocking ones, do."""

    def right(world: World, non_blocking: bool) -> bool:
        other, x = world.cupy.cuda.Stream(non_blocking=non_blocking), world.cupy.zeros(2)
        with other:
            x += 1
        x *= 3
        return x.tolist() == [3, 3]

    assert share_of(lambda world: right(world, False)) == 1
    assert share_of(lambda world: right(world, True)) < 0.9


@pytest.mark.parametrize("held", [True, False])
def test_freed_memory_is_poisoned(held: bool) -> None:
    """Work of another stream finds NaN in memory that was let go; what keeps a reference is right."""

    def right(world: World) -> bool:
        side, x = side_stream(world), world.cupy.ones(3)
        side.wait_event(world.cupy.cuda.get_current_stream().record())
        with side:
            y = x + x
        keep = [x] if held else []
        del x
        side.synchronize()
        return y.tolist() == [2, 2, 2] and len(keep) == held

    share = share_of(right)
    assert share == 1 if held else share < 0.9


def test_memory_freed_in_the_order_of_its_own_stream_is_fine() -> None:
    """As cupy's pool does it: a temporary of the same stream may go before the stream has read it."""
    assert share_of(lambda world: ((world.cupy.ones(3) + 1) * 2).tolist() == [4, 4, 4]) == 1
    assert share_of(lambda world: bool(np.isnan(world.cupy.empty(3).get()).all())) == 1


def test_freed_memory_cannot_be_named() -> None:
    """An address of freed memory, or a size beyond the block, is refused when it is issued."""
    world = build()
    runtime, x = world.cupy.cuda.runtime, world.cupy.zeros(4, np.float32)
    with pytest.raises(CUDARuntimeError, match="16 past the block"):
        runtime.memsetAsync(x.data.ptr, 0, 32, 0)
    ptr = x.data.ptr
    del x
    with pytest.raises(CUDARuntimeError, match="freed"):
        runtime.memsetAsync(ptr, 0, 16, 0)


def test_pinned_memory_is_read_late_and_pageable_memory_at_once() -> None:
    """Changing pinned memory before its copy is done shows; freeing it too; a copy to pageable memory blocks."""
    world = build()
    cuda, x = world.cupy.cuda, world.cupy.zeros(8, np.uint8)
    pinned = cuda.alloc_pinned_memory(8)
    host, plain = np.frombuffer(pinned, np.uint8, 8), np.ones(8, np.uint8)
    host[:] = 1
    for source in (host, plain):
        cuda.Stream.null.synchronize()
        cuda.runtime.memcpyAsync(x.data.ptr, source.ctypes.data, 8, cuda.runtime.memcpyHostToDevice, 0)
        source[:] = 7
        assert x.tolist() == [7 if source is host else 1] * 8
    cuda.runtime.memcpyAsync(plain.ctypes.data, x.data.ptr, 8, cuda.runtime.memcpyDeviceToHost, 0)
    assert plain.tolist() == [1] * 8
    x.set(host)
    del host, pinned, source
    assert x.tolist() != [7] * 8


EXPRESSIONS: list[Callable[[Any], Any]] = [
    lambda a: a * 2 + 1,
    lambda a: (a > 3) | (a == 0),
    lambda a: a.sum(),
    lambda a: a.sum(axis=0, dtype=np.float64),
    lambda a: a[1:, ::2],
    lambda a: a[-1, 2],
    lambda a: a.reshape(-1)[3:7].astype(np.float16),
    lambda a: a.T.dot(a),
    lambda a: np.dot(a[0], a[1]),
    lambda a: np.where(a > 3, a, np.float32(0)),
    lambda a: np.concatenate([a[0], a[2]]),
    lambda a: np.split(a, 2, axis=1)[1],
    lambda a: np.maximum(a, 4, out=a),
    lambda a: a.view(np.uint16),
    lambda a: np.zeros_like(a, dtype=np.int8),
    lambda a: np.float64(3) * a.mean(axis=1),
    lambda a: np.add.reduce(a, axis=1),
]


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
def test_arrays_compute_what_numpy_computes(number: int) -> None:
    """Value, shape and type are numpy's, in the order of the stream, and after changes in place."""
    world, host = build(seed=number), np.arange(12, dtype=np.float32).reshape(3, 4)
    a = world.cupy.asarray(host)
    for array in (host, a):
        array[1] = 5
        array[0, 1:] -= array[2, 1:]
        np.copyto(array[2, :2], array[1, 2:])
    wanted, got = np.asarray(EXPRESSIONS[number](host)), EXPRESSIONS[number](a)
    assert isinstance(got, world.cupy.ndarray)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(got.get(), wanted)
    np.testing.assert_array_equal(a.get(), host)


def test_arrays_do_not_become_numpy_arrays() -> None:
    """Nothing turns into a host array, or waits for the device, without being told to."""
    world = build(seed=1)
    a, host = world.cupy.ones((2, 2)), np.ones((2, 2))
    assert not isinstance(a, np.ndarray)
    for wrong in (
        lambda: np.asarray(a),
        lambda: float(a[0, 0]),
        lambda: bool(a.all()),
        lambda: a + host,
        lambda: host + a,
        lambda: np.add(a, a, out=host),
        lambda: np.copyto(host, a),
        lambda: np.concatenate([a, host]),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="non-scalar"):
        a[:] = host
    assert (a + np.float64(1) + 1).tolist() == [[3, 3], [3, 3]]


def test_memory_of_others() -> None:
    """`UnownedMemory` and `__cuda_array_interface__` give views, which keep their owner."""
    world = build()
    cupy, owner = world.cupy, np.arange(6, dtype=np.int32)
    place = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(owner.ctypes.data, owner.nbytes, owner), 8)
    view = cupy.ndarray((4,), np.int32, place)
    other = cupy.asarray(type("Foreign", (), {"__cuda_array_interface__": view.__cuda_array_interface__})())
    other += 1
    assert view.tolist() == [3, 4, 5, 6]
    assert owner.tolist() == [0, 1, 3, 4, 5, 6]
    assert other.data.ptr == owner.ctypes.data + 8


def test_devices_are_kept_apart() -> None:
    """Arrays and events belong to their device, streams are current for one; a default stream is each device's own."""
    world = build()
    cupy, cuda = world.cupy, world.cupy.cuda
    a, event, stream = cupy.ones(2), cuda.Event(), cuda.Stream()
    with cuda.Device(1):
        for wrong in (lambda: a + 1, event.record, stream.use):
            with pytest.raises((ValueError, RuntimeError), match="device"):
                wrong()
        b = cupy.ones(2)
        cuda.get_current_stream().delay(10**9)
    a.get()
    assert b.device == cuda.Device(1)
    assert cuda.get_current_stream().done
    assert len({cuda.runtime.getDeviceProperties(device)["uuid"] for device in range(2)}) == 2
    with pytest.warns(DeprecationWarning, match="from_external"):
        assert cuda.ExternalStream(stream.ptr) == stream == cuda.Stream.from_external(stream)


def test_the_log_tells_what_was_issued() -> None:
    """Thread, device, stream and what it was, in the order of issue; waiting of the host is told too."""
    world = build()
    cuda, side = world.cupy.cuda, side_stream(world)
    with cuda.Device(1):
        world.cupy.zeros(4, np.int8)
    event = side.record()
    cuda.Stream.null.wait_event(event)
    event.synchronize()
    told = [(record.device, record.stream, record.verb) for record in world.log]
    assert told[:3] == [(0, 1, "new stream"), (1, 0, "malloc"), (1, 0, "compute")]
    assert told[3:5] == [(1, 0, "free"), (0, 1, "record")]
    assert told[5:] == [(0, 0, "wait_event"), (0, None, "synchronize")]
    assert {record.thread for record in world.log} == {"MainThread"}
    assert world.log[-1].details == world.log[-2].details == {"event": event.ptr}


def test_check_over_tells_what_is_left() -> None:
    """Pending operations, memory that is still held, and errors that nobody expected."""
    world = build()
    x = world.cupy.ones(5)
    world.errors.append("something broke")
    with pytest.raises(AssertionError) as caught:
        world.check_over()
    for what in ("stream 0 of device 0: setitem", "not freed: 40 bytes", "something broke"):
        assert what in str(caught.value)
    world.errors.clear()
    world.run_all()
    del x
    world.check_over()


def test_an_eager_world_runs_at_once() -> None:
    """With `eager` nothing is left to schedule: even a program without waits is right."""
    world = build(eager=True)
    side, x = side_stream(world), world.cupy.arange(4)
    with side:
        y = x + 1
    assert not side.queue.pending
    assert y.tolist() == [1, 2, 3, 4]


def test_it_is_imported_as_cupy() -> None:
    """As installed, `import cupy` and its submodules give the stand-in, and afterwards what was there before."""
    before = sys.modules.get("cupy")
    with pytest.MonkeyPatch.context() as patch:
        world = install(patch, devices=3, nccl_version=23004)
        import cupy
        from cupy.cuda import nccl, runtime

        assert importlib.util.find_spec("cupy") is not None
        assert cupy is world.cupy
        assert nccl.get_version() == 23004
        assert len(nccl.get_unique_id()) == 128
        assert runtime.getDeviceCount() == 3
        assert cupy.get_array_module(cupy.zeros(1)) is cupy
        assert cupy.get_array_module(np.zeros(1)) is np
    assert sys.modules.get("cupy") is before
