"""A small table with a line for each rank: text in a terminal, HTML in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from workbench.common.text import columns


@dataclass(frozen=True, repr=False)
class RankTable:
    """Text in columns.

    Args:
        columns: their names; the first is ``rank``.
        rows: a line for each rank, as long as ``columns``.
        below: one more line in the same columns, about all ranks; none if empty.
        foot: text below.

    Example:
        >>> RankTable(("rank", "type"), (("0", "int"), ("1", "str")), foot=("Not the same.",))
        rank  type
           0  int
           1  str
        Not the same.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[str] = ()
    foot: Sequence[str] = ()

    def column(self, name: str) -> list[str]:
        """One column, by rank.

        Raises:
            ValueError: there is no such column.
        """
        return [row[self.columns.index(name)] for row in self.rows]

    def __repr__(self) -> str:
        return "\n".join([*columns([self.columns, *self._lines()]), *self.foot])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._lines())
        foot = "".join(f"<p>{escape(line)}</p>" for line in self.foot)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"

    def _lines(self) -> list[Sequence[str]]:
        return [*self.rows, *filter(None, [self.below])]


class _HasTable(Protocol):
    @property
    def table(self) -> RankTable: ...


class ShownAsTable:
    """Shows itself as its ``table``, in a terminal and in a notebook."""

    def __repr__(self: _HasTable) -> str:
        return repr(self.table)

    def _repr_html_(self: _HasTable) -> str:
        return self.table._repr_html_()
