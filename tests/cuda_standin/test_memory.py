"""The stand-in is as treacherous as a GPU: freed memory is at once somebody else's, new memory was so until now."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from . import CUDARuntimeError, World, build

SEEDS = range(60)


def side_stream(world: World) -> Any:
    """One that is bound by events alone."""
    return world.cupy.cuda.Stream(non_blocking=True)


@pytest.mark.parametrize("waits", [True, False])
def test_new_memory_is_used_in_the_order_of_its_stream(waits: bool) -> None:
    """What another stream writes into it earlier is lost, for some seeds."""

    def right(world: World) -> bool:
        side, null = side_stream(world), world.cupy.cuda.Stream.null
        null.delay(5)
        x = world.cupy.empty(3, np.float32)
        if waits:
            side.wait_event(null.record())
        with side:
            x[...] = 1
        world.run_all()
        return x.tolist() == [1, 1, 1]

    share = sum(right(build(seed=seed)) for seed in SEEDS) / len(SEEDS)
    assert share == 1 if waits else share < 0.9


def test_writing_into_freed_memory_is_found() -> None:
    """At the end, with how much memory it is; the same write before the free is fine."""
    world = build(seed=1)
    side, x, y = side_stream(world), world.cupy.zeros(3), world.cupy.zeros(5)
    world.run_all()
    side.delay(3)
    with side:
        y[...] = 1
        x[...] = 1
        side.delay(1)
    del x
    world.run_all()
    del y
    with pytest.raises(AssertionError, match=r"^written after the free: 24 bytes at 0x[0-9a-f]+$"):
        world.check_over()


def test_a_device_object_may_be_entered_by_several_threads() -> None:
    """As cupy's: each thread gets back the device that it had."""
    world = build(devices=2)
    device, inside, over = world.cupy.cuda.Device(1), threading.Event(), threading.Event()

    def other() -> None:
        with device:
            inside.set()
            over.wait(10)

    world.set_device(1)
    with device:
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(10)
    assert world.device() == 1
    over.set()
    thread.join(10)


def test_a_broken_device_is_never_done() -> None:
    """As in cupy, a query does not raise where something went wrong: it tells the code, or false; a wait raises."""
    world = build()
    event, runtime = world.cupy.cuda.Event(), world.cupy.cuda.runtime
    event.record()
    assert runtime.eventQuery(event.ptr) in (0, 600)
    world.run_all()
    assert event.done
    world.errors.append("an illegal memory access was encountered")
    assert not event.done
    assert not world.cupy.cuda.Stream.null.done
    assert runtime.eventQuery(event.ptr) == 700
    with pytest.raises(CUDARuntimeError, match="illegal"):
        event.synchronize()
