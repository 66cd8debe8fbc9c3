"""Shows the panel where there is a notebook, else the rows as a table of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from workbench.cluster.panel.activity import step_of
from workbench.cluster.panel.feed import Feed, Row
from workbench.common.notebook import running_kernel
from workbench.common.text import columns, first_line

_HEAD = ("rank", "state", "", "step", "loss", "s/step", "GB/s", "cores", "MB", "line")
_GPU = ("GPU %", "GPU MB")
_RIGHT = (0, 3, 4, 5, 6, 7, 8)
_MOST = 48


def show_panel(cluster: Any) -> Any:
    """A widget in a notebook; elsewhere print tables until Ctrl-C."""
    if running_kernel() is not None:
        from workbench.cluster.panel.widget import panel

        return panel(cluster)
    print_tables(Feed(cluster.client, range(cluster.n)))
    return None


def print_tables(feed: Feed, every_s: float = 1.0, rounds: int = 0) -> None:
    """One table after the other in the same place, until Ctrl-C, or so many ``rounds``."""
    height = round_ = 0
    try:
        while not rounds or round_ < rounds:
            round_ += 1
            feed.rows()
            time.sleep(every_s)
            lines = [*as_table(feed.rows()), feed.sentence()]
            if sys.stdout.isatty():
                lines = [f"\x1b[K{line}" for line in lines]
                print(f"\x1b[{height}A" if height else "", end="")
            print("\n".join(lines), flush=True)
            height = len(lines)
    except KeyboardInterrupt:
        return


def as_table(rows: Sequence[Row]) -> list[str]:
    """Lines, the head first.

    Example:
        >>> row: Row = {
        ...     "rank": 0, "state": "waits", "detail": "for 2 in x, 3 s", "line": "in the cell, line 4: step()",
        ...     "missing": [2], "loop": {"step": 17, "loss": 0.25}, "step_s": 0.5, "gb_s": 0.0123, "cpu": 1.0,
        ...     "memory": 123_000_000, "gpu": None,
        ... }
        >>> for line in as_table([row]):
        ...     print(line)
        rank  state                   step  loss  s/step   GB/s  cores   MB  line
           0  waits  for 2 in x, 3 s    17  0.25   0.500  0.012    1.0  123  in the cell, line 4: step()
    """
    cells = [_HEAD, *(_cells(row, gpu=False) for row in rows)]
    if any(row["gpu"] for row in rows):
        cells = [(*_HEAD[:-1], *_GPU, _HEAD[-1]), *(_cells(row, gpu=True) for row in rows)]
        return columns(cells, right=(*_RIGHT, 9, 10))
    return columns(cells, right=_RIGHT)


def _cells(row: Row, gpu: bool) -> tuple[str, ...]:
    at = step_of(row["loop"])
    step = "" if at is None else str(int(at))
    loss = f"{row['loop']['loss']:.4g}" if "loss" in row["loop"] else ""
    step_s = f"{row['step_s']:.3f}" if row["step_s"] is not None else ""
    rates = f"{row['gb_s']:.3f}", f"{row['cpu']:.1f}", str(row["memory"] // 1_000_000)
    numbers: tuple[str, ...] = (step, loss, step_s, *rates)
    if gpu:
        use = row["gpu"] or {}
        memory = str(use["memory"] // 1_000_000) if "memory" in use else ""
        numbers = (*numbers, str(use.get("percent", "")), memory)
    return str(row["rank"]), row["state"], first_line(row["detail"], _MOST), *numbers, first_line(row["line"], _MOST)
