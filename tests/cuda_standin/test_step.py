"""The stand-in as a whole: the traffic of a training step, whose every wait is needed."""

from __future__ import annotations

import numpy as np
import pytest

from . import World, build, run_ranks

STEPS, SIZE = 3, 4


def train(world: World, leave_out: str) -> list[list[float]]:
    """Each rank adds its number to x on the default stream; x is summed over the ranks on another; and again."""
    cuda, nccl = world.cupy.cuda, world.cupy.cuda.nccl
    unique = nccl.get_unique_id()

    def work(rank: int) -> list[float]:
        communicator = nccl.NcclCommunicator(2, unique, rank)
        side = cuda.Stream(non_blocking=True)
        ready, done = (cuda.Event(disable_timing=True) for _ in range(2))
        x = world.cupy.zeros(SIZE, np.float32)
        for _ in range(STEPS):
            x += rank + 1
            ready.record()
            if leave_out != "ready":
                side.wait_event(ready)
            with side:
                buffer = x.copy()
                ptr = buffer.data.ptr
                communicator.allReduce(ptr, ptr, SIZE, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, side.ptr)
                x[...] = buffer
            done.record(side)
            if leave_out != "done":
                cuda.get_current_stream().wait_event(done)
        result: list[float] = x.tolist()
        cuda.Device().synchronize()
        communicator.destroy()
        return result

    return run_ranks(world, 2, work)


@pytest.mark.parametrize("leave_out", ["nothing", "ready", "done"])
def test_every_wait_of_a_step_is_needed(leave_out: str) -> None:
    """With all waits the sums are right for every seed; without one of them, wrong for some."""
    total = 0
    for _ in range(STEPS):
        total = (total + 1) + (total + 2)
    right = 0
    for seed in range(30):
        world = build(seed=seed)
        right += train(world, leave_out) == [[total] * SIZE] * 2
        world.check_over()
    assert right == 30 if leave_out == "nothing" else right < 30
