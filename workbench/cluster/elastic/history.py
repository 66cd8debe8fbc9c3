"""The cells that the engines have run, for newcomers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass
class _Cell:
    """One cell, and as long as some engines run it their results: first that of the cell, then those of newcomers.

    ``epoch`` is that in which it began.
    """

    text: str
    results: list[Any]
    epoch: int
    failed: bool = False


class Finished(NamedTuple):
    """Cells that nobody runs any more.

    Args:
        cells: those that a newcomer is to run.
        failed: those that have failed somewhere: their author writes them again.
        since: the number of the first cell after them.
    """

    cells: list[str]
    failed: list[str]
    since: int


class CellHistory:
    """Cells in their order.

    Example:
        >>> class Result:
        ...     done, well = False, True
        ...     def ready(self): return self.done
        ...     def successful(self): return self.well
        >>> first, second, cells = Result(), Result(), CellHistory()
        >>> cells.add("x = 1", first, epoch=0); first.done = True
        >>> cells.add("train(x)", second, epoch=1)
        >>> cells.finished(since=0), cells.running()
        (Finished(cells=['x = 1'], failed=[], since=1), [(1, 'train(x)', 1)])
    """

    def __init__(self) -> None:
        self._cells: list[_Cell] = []

    def add(self, cell: str, result: Any, epoch: int) -> None:
        self._look()
        self._cells.append(_Cell(cell, [result], epoch))

    def joins(self, number: int, result: Any) -> None:
        """A newcomer runs a cell, too: it is not over before the newcomer has run it."""
        self._cells[number].results.append(result)

    def finished(self, since: int) -> Finished:
        """The cells from number ``since`` to the first that runs."""
        self._look()
        found = Finished([], [], since)
        for cell in self._cells[since:]:
            if cell.results:
                break
            (found.failed if cell.failed else found.cells).append(cell.text)
        return found._replace(since=since + len(found.cells) + len(found.failed))

    def running(self) -> list[tuple[int, str, int]]:
        """Those that some have not finished: number, text, and the epoch in which they began."""
        self._look()
        return [(number, cell.text, cell.epoch) for number, cell in enumerate(self._cells) if cell.results]

    def _look(self) -> None:
        """Forget the results of those that are finished."""
        for cell in self._cells:
            if cell.results and all(each.ready() for each in cell.results):
                cell.failed, cell.results = not cell.results[0].successful(), []
