"""What our JupyterLab extension gets: rows as data, which it shows as tabs, and a comm that says which ranks exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.cluster.output.rows import Row
from workbench.cluster.output.screen import Bundle, Item, together
from workbench.common.text import rank_spans

MIME = "application/vnd.workbench.ranks+json"
RANKS = "workbench-ranks"
"""The target of a comm that is open while a notebook has ranks. It says which, at first and when it is asked."""
IN_TAB = "application/vnd.workbench.in-tab+json"
"""Of a display that only frontends without our extension show."""


def as_data(
    rows: Sequence[Row], ranks: Sequence[int], note: str = "", running: bool = False, cell: str = ""
) -> dict[str, Any]:
    r"""All rows, and a line below them; ``cell``: its id, by which a page finds it that has not begun it.

    Example:
        >>> from workbench.cluster.output.screen import Line
        >>> as_data([Row((0, 1), (Line("a"), Line("b")))], [0, 1])["rows"]
        [{'ranks': [0, 1], 'who': 'ranks 0, 1', 'items': [{'text': 'a\nb', 'error': False}]}]
    """
    shown = [{"ranks": list(row.ranks), "who": rank_spans(row.ranks), "items": _items(row.items)} for row in rows]
    return {"version": 1, "ranks": list(ranks), "rows": shown, "note": note, "running": running, "cell": cell}


def _items(items: Sequence[Item]) -> list[dict[str, Any]]:
    return [
        {"data": each.data, "metadata": each.metadata}
        if isinstance(each, Bundle)
        else {"text": "\n".join(line.text for line in each), "error": each[0].error}
        for each in together(items)
    ]
