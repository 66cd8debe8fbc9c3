"""What an engine knows of cells is read by one thread while another one hears of news."""

from __future__ import annotations

from typing import Any

from workbench.common.cell_numbers import CellNumbers


class Watched(CellNumbers):
    """Keeps what another thread could read after each change: the version, and then what belongs to it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, list[int]]] = []
        super().__init__(engine=0)
        self.seen.clear()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("version", "sent", "idle") and hasattr(self, "idle"):
            self.seen.append((self.version, self.sent.get(0, 0), self.idle))


def test_a_version_is_never_ahead_of_what_it_stands_for() -> None:
    """Else rank 0 would take old numbers for new ones, and refuse the new ones as known already."""
    numbers = Watched()
    for version in (1, 2, 3):
        numbers.receive({"version": version, "sent": [[0, version]], "idle": [version], "running": []})
    assert len(numbers.seen) == 9
    assert all(sent >= version and (not version or idle >= [version]) for version, sent, idle in numbers.seen)


def test_what_was_overtaken_changes_nothing() -> None:
    """A request that waited in the queue knows less than what the control channel has brought since."""
    numbers = CellNumbers(engine=0)
    numbers.receive({"version": 8, "sent": [[0, 3], [1, 5]], "idle": [1], "running": []})
    numbers.begin(
        {"version": 7, "call": 6, "numbers": [[0, 3]], "sent": [[0, 3], [1, 4]], "idle": [], "running": [[1, 6]]}
    )
    assert (numbers.number, numbers.version, numbers.sent, numbers.idle) == (3, 8, {0: 3, 1: 5}, [1])
