"""Puts the output of a running cell where its reader is: below the cell of a notebook, or on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from workbench import config
from workbench.cluster.output.as_data import IN_TAB, MIME, as_data
from workbench.cluster.output.as_html import as_html
from workbench.cluster.output.as_text import as_text
from workbench.cluster.output.collected import Collected
from workbench.cluster.output.rows import Row, merged, one_bar
from workbench.cluster.output.screen import Item, Line
from workbench.cluster.output.widgets import VIEW
from workbench.common.text import cut

_LIVE_ITEMS = 50  # of a rank: while a cell runs its last ones are shown, and all when it has ended
_MOST_ITEMS = 50_000  # of all ranks together, in the notebook's data


class Shown(Protocol):
    """Where a cell's output is shown."""

    def refresh(self, note: str) -> None:
        """What has come is shown; ``note`` is one line below, which the next one replaces."""

    def finish(self, note: str) -> None:
        """The cell has ended."""

    def late(self) -> None:
        """Something has come after its end."""


class BelowTheCell:
    """One display, which is replaced again and again.

    Args:
        collected: the output.
        ranks: the engines that run the cell.
        cell: its id in the notebook.
    """

    def __init__(self, collected: Collected, ranks: Sequence[int], cell: str = "") -> None:
        self._collected, self._ranks, self._cell = collected, list(ranks), cell
        self._display: Any = None
        self._widgets, self._note = 0, ""

    def refresh(self, note: str) -> None:
        items = {rank: _last(each, _LIVE_ITEMS) for rank, each in self._collected.items().items()}
        note = " · ".join(filter(None, (note, self._collected.too_much)))
        self._put(_rows(items), note, running=True)

    def finish(self, note: str) -> None:
        self._note = note
        self.late()

    def late(self) -> None:
        items = self._collected.items()
        most = _MOST_ITEMS // max(1, len(items))
        kept = {rank: _both_ends(each, most) for rank, each in items.items()}
        self._put(_rows(kept), self._note, running=False)

    def _put(self, rows: Sequence[Row], note: str, running: bool) -> None:
        from IPython import display as ipython

        display: Any = ipython.display
        for engine, content in self._collected.widgets()[self._widgets :]:
            self._widgets += 1
            # Where our extension is, a widget is in its rank's tab, and these two show nothing.
            in_tab: dict[str, Any] = {IN_TAB: {}} if VIEW in content["data"] else {}
            display({"text/plain": f"rank {engine}:", **in_tab}, raw=True)
            display(content["data"] | in_tab, metadata=content.get("metadata") or {}, raw=True)
        if not rows and not note and self._display is None:
            return
        text = as_text(rows)
        data = {
            "text/plain": "\n".join(filter(None, (text, note))),
            "text/html": as_html(rows, note),
            MIME: as_data(rows, self._ranks, note, running, self._cell),
        }
        if self._display is None:
            self._display = display(data, raw=True, display_id=True)
        else:
            self._display.update(data, raw=True)


class OnTerminal:
    """Lines as they become complete, and on a real terminal the last one is replaced.

    Args:
        collected: the output.
        ranks: the engines that run the cell.
    """

    def __init__(self, collected: Collected, ranks: Sequence[int]) -> None:
        self._collected, self._printed = collected, dict.fromkeys(ranks, 0)
        self._replaces = sys.stdout.isatty()
        self._note = False

    def refresh(self, note: str) -> None:
        self._print(complete=True)
        last = self._collected.open_lines()
        bars = _rows({rank: [line] for rank, line in last.items()}) if last else []
        if note or bars:
            self._replace(" | ".join(filter(None, (as_text(bars).replace("\n", " | "), note))))

    def finish(self, note: str) -> None:
        self._print(complete=False)
        self._replace("")

    def late(self) -> None:
        self._print(complete=True)

    def _print(self, complete: bool) -> None:
        new: dict[int, list[Item]] = {}
        for rank, items in self._collected.items(complete).items():
            new[rank] = items[self._printed.get(rank, 0) :]
            self._printed[rank] = max(len(items), self._printed.get(rank, 0))
        if any(new.values()):
            self._replace("")
            print(as_text(merged(new), most=sys.maxsize), flush=True)

    def _replace(self, text: str) -> None:
        if self._replaces and (text or self._note):
            print(f"\r\x1b[K{text}", end="", flush=True)
            self._note = bool(text)


def _rows(items: Mapping[int, Sequence[Item]]) -> list[Row]:
    return merged(items if config.each_bar() else one_bar(items))


def _last(items: list[Item], most: int) -> list[Item]:
    last = [Line(cut(each.text), each.error) if isinstance(each, Line) else each for each in items[-most:]]
    return [Line(f"… {len(items) - most} lines before …"), *last] if len(items) > most else last


def _both_ends(items: list[Item], most: int) -> list[Item]:
    if len(items) <= most:
        return items
    return [*items[: most // 2], Line(f"… {len(items) - most} lines are left out here …"), *items[-(most // 2) :]]
