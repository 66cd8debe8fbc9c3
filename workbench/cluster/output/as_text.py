"""Rows as plain text: for a terminal, for GitHub, and for what searches notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.cluster.output.rows import SCREEN_LINES, Row, folded
from workbench.cluster.output.screen import Bundle, Item
from workbench.common.text import count, cut, rank_spans


def as_text(rows: Sequence[Row], most: int = SCREEN_LINES) -> str:
    """The lines, each with its ranks before it.

    Example:
        >>> from workbench.cluster.output.screen import Line
        >>> print(as_text([Row((0, 1), (Line("step 1"),)), Row((1,), (Line("only here"),))]))
        ranks 0, 1 │ step 1
        rank 1     │ only here
    """
    width = max((len(rank_spans(row.ranks)) for row in rows), default=0)
    return "\n".join(
        f"{rank_spans(row.ranks):{width}} │ {line}".rstrip()
        for row, (first, hidden, last) in folded(rows, most)
        for line in (*_lines(first), *([f"… {count(len(hidden), 'more line')} …"] if hidden else []), *_lines(last))
    )


def _lines(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        yield from plain(item).split("\n") if isinstance(item, Bundle) else [cut(item.text)]


def plain(bundle: Bundle) -> str:
    """What stands for a bundle in a text."""
    text = bundle.data.get("text/plain") or ", ".join(bundle.data)
    return text if isinstance(text, str) else "".join(text)
