"""The process sets of one rank, and what happens to their backends."""

from __future__ import annotations

from typing import Any

from workbench.core.backend.process_sets import SetTable
from workbench.errors import CollectiveError


class Life:
    """Of a backend that is asked for parts of itself, and closed."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.closed, self.given_up = 0, list[Exception]()

    def subset(self, ranks: Any) -> Any:
        self.parts.append(backend(len(ranks)))
        return self.parts[-1]

    def close(self, clean: bool = True) -> None:
        self.closed += 1

    def give_up(self, why: Exception) -> None:
        self.given_up.append(why)


def backend(size: int) -> Any:
    """A backend of so many ranks, with a life that takes notes."""
    return type("", (), {"size": size, "life": Life()})()


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


def test_what_is_in_flight_is_given_up_unless_all_is_done() -> None:
    """In both kinds of memory, with the reason."""
    for clean, told in ((True, 0), (False, 1)):
        cpu, gpu = backend(2), backend(2)
        table = SetTable(0, cpu)
        table.use_gpu(gpu)
        table.give_up(why := CollectiveError("rank 1 has left"), clean)
        assert cpu.life.given_up == gpu.life.given_up == [why] * told
