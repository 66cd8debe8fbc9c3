"""Process sets over shared memory that overlap, used in turns by ranks of which some are slow in some of them."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from memory_world import backends, drawn, placed, serial

from workbench.collectives.reduction import Reduction
from workbench.core.backend.base import Backend
from workbench.transport.shm.staged import SEGMENT_BYTES

SETS = [[0, 1, 2, 3], [0, 1], [1, 2], [2, 3], [0, 3], [0, 1, 2], [1, 2, 3], [2]]
SUM = Reduction("sum", "float32")
STAGED = SEGMENT_BYTES // 4 + 5  # two segments


def drowsy(backend: Backend, dice: random.Random, share: float) -> None:
    """Let a rank fall asleep within its collectives, between any two steps of them."""

    def slowly(function: Any) -> Any:
        def run(*args: Any) -> Any:
            if dice.random() < share:
                time.sleep(dice.random() / 300)
            return function(*args)

        return run

    verbs: Any = backend.collectives
    steps = [(verbs._stage, name) for name in ("_copy_in", "_reduce", "_copy_out", "next_slot")]
    for owner, name in [*steps, (verbs, "_barrier"), (verbs._cross, "_addresses"), (verbs._cross, "_part")]:
        if owner is not None:
            setattr(owner, name, slowly(getattr(owner, name)))


def work(backend: Backend, verb: str, length: int, seed: int, ranks: list[int], me: int) -> bool:
    """One collective; is its result right?"""
    data, root = drawn(me, length, "float32", seed), seed % len(ranks)
    if verb == "broadcast":
        backend.collectives.broadcast(data, root)
        return data.tobytes() == drawn(ranks[root], length, "float32", seed).tobytes()
    if verb == "allgather":
        parts = [drawn(rank, length, "float32", seed) for rank in ranks]
        array = np.zeros(length * len(ranks), np.float32)
        array[backend.rank * length :][:length] = data
        backend.collectives.allgather(array, [length] * len(ranks))
        return array.tobytes() == np.concatenate(parts).tobytes()
    if verb == "in place" and len(ranks) > 1:
        data, places = placed(backend, data)
        backend.collectives.allreduce(data, SUM, places)
    elif verb == "fusion buffer":
        mine = backend.shared.buffer(data.nbytes).view("float32")
        mine[:] = data
        backend.collectives.allreduce(mine, SUM)
        data = mine.copy()
    else:
        backend.collectives.allreduce(data, SUM)
    return data.tobytes() == serial(ranks, length, SUM, seed).tobytes()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("slow", "remote"),
    [
        (None, False),
        (3, True),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in [(None, True), (0, False), (0, True), (3, False)]
        ),
    ],
)
def test_sets_that_overlap(slow: int | None, remote: bool) -> None:
    """Many rounds of every verb and way in eight sets, one order on all ranks: every value is right, always."""
    dice = random.Random(11)
    verbs = ["copied", "in place", "fusion buffer", "broadcast", "allgather"]
    plan = [(dice.randrange(len(SETS)), dice.choice(verbs), dice.choice((3, 3000, STAGED))) for _ in range(160)]

    def run(everybody: Backend) -> list[int]:
        me = everybody.rank
        mine = {i: everybody.life.subset(ranks) if i else everybody for i, ranks in enumerate(SETS) if me in ranks}
        for i, backend in mine.items():
            if slow is None or (me == slow and i % 2):  # slow in every second of its sets only
                drowsy(backend, random.Random(100 * me + i), 0.05 if slow is None else 0.3)
        return [
            step
            for step, (i, verb, length) in enumerate(plan)
            if i in mine and not work(mine[i], verb, length, step, SETS[i], me)
        ]

    assert backends(4, run, fusion_bytes=2 << 20, remote=remote) == [[]] * 4


def test_a_set_that_is_gone_is_still_read_from() -> None:
    """A rank that closes a set while another one still copies the last result takes no memory away from it."""
    closed, reading = threading.Event(), threading.Event()

    def run(everybody: Backend) -> list[bool]:
        me, part = everybody.rank, everybody.life.subset([0, 1])
        if me == 1:
            verbs: Any = part.collectives._stage  # type: ignore[attr-defined]
            copy_out = verbs._copy_out

            def late(*args: Any) -> None:
                reading.set()
                assert closed.wait(20)
                copy_out(*args)

            verbs._copy_out = late
        data = drawn(me, STAGED // 2, "float32")
        part.collectives.allreduce(data, SUM)
        if me == 0:
            assert reading.wait(20)
            part.life.close()
            everybody.shared.allocate(4 * SEGMENT_BYTES)[:] = 255
            closed.set()
        return [data.tobytes() == serial([0, 1], STAGED // 2, SUM).tobytes()]

    assert backends(2, run) == [[True]] * 2


def test_sets_made_again_and_again_take_no_more_memory() -> None:
    """The stage of a set that is gone is used by the next one."""

    def run(everybody: Backend) -> int:
        places = set()
        for _ in range(20):
            part = everybody.life.subset([0, 1])
            verbs: Any = part.collectives
            places.add(verbs._stage.next_slot()[everybody.rank].ctypes.data)
            data = np.full(5000, 1.0, np.float32)
            part.collectives.allreduce(data, SUM)
            assert (data == 2).all()
            part.life.close()
        return len(places)

    assert backends(2, run) == [1, 1]
