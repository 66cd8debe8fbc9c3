"""The cells that the engines have run, for newcomers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class _Cell:
    """One cell; ``result`` is an ``ipyparallel.AsyncResult`` as long as some engines run it."""

    text: str
    result: Any
    failed: bool = False


class History:
    """Cells in their order.

    Example:
        >>> class Result:
        ...     done, well = False, True
        ...     def ready(self): return self.done
        ...     def successful(self): return self.well
        >>> first, second, cells = Result(), Result(), History()
        >>> cells.add("x = 1", first); first.done = True
        >>> cells.add("train(x)", second)
        >>> cells.finished(since=0), cells.running()
        ((['x = 1'], 1), ['train(x)'])
    """

    def __init__(self) -> None:
        self._cells: list[_Cell] = []

    def add(self, cell: str, result: Any) -> None:
        """A cell was sent to all engines."""
        self._look()
        self._cells.append(_Cell(cell, result))

    def finished(self, since: int) -> tuple[list[str], int]:
        """The cells from number ``since`` to the first that runs, and the number of that one.

        A cell that has failed anywhere is left out: its author writes it again.
        """
        self._look()
        found = []
        for cell in self._cells[since:]:
            if cell.result is not None:
                break
            since += 1
            found += [] if cell.failed else [cell.text]
        return found, since

    def running(self) -> list[str]:
        """Those that some have not finished."""
        self._look()
        return [cell.text for cell in self._cells if cell.result is not None]

    def _look(self) -> None:
        """Forget the results of those that are finished."""
        for cell in self._cells:
            if cell.result is not None and cell.result.ready():
                cell.failed, cell.result = not cell.result.successful(), None


__all__ = ["History"]
