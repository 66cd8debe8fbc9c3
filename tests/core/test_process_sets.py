"""The process sets of one rank, and what happens to their backends."""

from __future__ import annotations

from typing import Any, cast

from workbench.core.backend.base import Backend
from workbench.core.backend.process_sets import SetTable


class Life:
    """Of a backend that is asked for parts of itself, and closed."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.closed = 0

    def subset(self, ranks: Any) -> Any:
        self.parts.append(backend(len(ranks)))
        return self.parts[-1]

    def close(self, clean: bool = True) -> None:
        self.closed += 1


def backend(size: int) -> Backend:
    """A backend of so many ranks, with a life that takes notes."""
    return cast("Backend", type("", (), {"size": size, "life": Life()})())


def test_a_set_that_is_removed_is_closed() -> None:
    """Its backends for both kinds of memory, once each; those of all ranks stay open, and the id is free again."""
    cpu, gpu = backend(4), backend(4)
    table = SetTable(1, cpu)
    table.use_gpu(gpu)
    table.add(7, [1, 2])
    table.add(8, [0, 3])  # without this rank
    mine = [*cpu.life.parts, *gpu.life.parts]
    assert table.members == {0: (0, 1, 2, 3), 7: (1, 2), 8: (0, 3)}
    assert [table.backend(7), table.backend(7, "cuda"), table.backend(8)] == [*mine, None]
    table.remove(7)
    table.remove(8)
    assert [each.life.closed for each in (*mine, cpu, gpu)] == [1, 1, 0, 0]
    assert table.members == {0: (0, 1, 2, 3)}
    assert table.backend(7) is None
