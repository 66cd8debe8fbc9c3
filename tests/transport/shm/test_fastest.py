"""Which of several ways is the fastest here: all ranks choose the same one, and any of them gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from memory_world import backends, drawn, serial

from workbench.collectives.reduction import Reduction
from workbench.core.backend.base import Backend
from workbench.transport.shm import collectives

SUM = Reduction("sum", "float32")


class Clock:
    """A time of one's own for each rank: the first way takes it long on rank 0, the second on rank 1."""

    def __init__(self, costs: tuple[int, int]) -> None:
        self.costs, self.now = costs, 0

    def way(self, number: int) -> None:
        """One of the ways."""
        self.now += self.costs[number]

    def read(self) -> int:
        """The time."""
        return self.now


def test_the_slowest_rank_decides_and_all_choose_alike() -> None:
    """Where the first way is quick for one rank and slow for the other, both stay with the second."""
    clocks = [Clock((9_000, 5_000)), Clock((1_000, 4_000))]

    def run(backend: Backend) -> list[int]:
        clock, node = clocks[backend.rank], backend.collectives._node  # type: ignore[attr-defined]
        used: list[int] = []
        ways = [lambda number=number: (clock.way(number), used.append(number)) for number in (0, 1)]
        fastest = collectives.Fastest(node, [0, 1], ways)
        fastest.clock = clock.read
        for _ in range(10):
            fastest(1 << 20)
        return used

    assert backends(2, run) == [[0, 1] * 3 + [1] * 4] * 2


def test_while_ways_are_tried_the_sums_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit what one thread gets, call after call, in whichever way."""
    monkeypatch.setattr(collectives, "_STAGED_BYTES", 0)

    def run(backend: Backend) -> list[bool]:
        same = []
        for length in (5000, 70_001, 5000, 300_001, 5000, 70_001, 5000, 5000):
            given = drawn(backend.rank, length, "float32")
            array = np.empty_like(given) if backend.rank else given
            backend.collectives.allreduce(array, SUM, (), given if backend.rank else None)
            same.append(array.tobytes() == serial(range(3), length, SUM).tobytes())
        return same

    assert backends(3, run, remote=True) == [[True] * 8] * 3
